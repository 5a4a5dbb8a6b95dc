"""The clients of the push service, with each operation of `operations`, `catalogue` and `cluster` as a method."""

from __future__ import annotations

from emq_clients.push import catalogue, cluster, operations
from emq_clients.transport import Api, AsyncApi, Method


class Operations:
    """The methods of both clients."""

    put_tenant = Method(operations.put_tenant)
    change_tenant = Method(operations.change_tenant)
    tenant = Method(operations.tenant)
    tenants = Method(operations.tenants)
    delete_tenant = Method(operations.delete_tenant)
    pause_tenant = Method(operations.pause_tenant)
    resume_tenant = Method(operations.resume_tenant)
    create_endpoint = Method(operations.create_endpoint)
    change_endpoint = Method(operations.change_endpoint)
    endpoint = Method(operations.endpoint)
    endpoints = Method(operations.endpoints)
    delete_endpoint = Method(operations.delete_endpoint)
    rotate_secret = Method(operations.rotate_secret)
    disable_endpoint = Method(operations.disable_endpoint)
    enable_endpoint = Method(operations.enable_endpoint)
    pause_endpoint = Method(operations.pause_endpoint)
    resume_endpoint = Method(operations.resume_endpoint)
    start_handshake = Method(operations.start_handshake)
    handshake = Method(operations.handshake)
    send_example = Method(operations.send_example)
    publish = Method(operations.publish)
    publish_many = Method(operations.publish_many)
    stored_message = Method(operations.stored_message)
    stored_messages = Method(operations.stored_messages)
    erase = Method(operations.erase)
    deliveries = Method(operations.deliveries)
    delivery = Method(operations.delivery)
    attempts = Method(operations.attempts)
    endpoint_attempts = Method(operations.endpoint_attempts)
    resend = Method(operations.resend)
    cancel = Method(operations.cancel)
    count_replay = Method(operations.count_replay)
    start_replay = Method(operations.start_replay)
    replay = Method(operations.replay)
    replays = Method(operations.replays)
    pause_replay = Method(operations.pause_replay)
    resume_replay = Method(operations.resume_replay)
    cancel_replay = Method(operations.cancel_replay)
    dead_letters = Method(operations.dead_letters)
    count_dead_letters = Method(operations.count_dead_letters)
    replay_dead_letters = Method(operations.replay_dead_letters)
    purge_dead_letters = Method(operations.purge_dead_letters)
    audit_log = Method(operations.audit_log)
    lag = Method(operations.lag)
    rates = Method(operations.rates)
    create_key = Method(operations.create_key)
    create_token = Method(operations.create_token)
    keys = Method(operations.keys)
    delete_key = Method(operations.delete_key)
    put_event_type = Method(catalogue.put_event_type)
    change_event_type = Method(catalogue.change_event_type)
    event_type = Method(catalogue.event_type)
    event_types = Method(catalogue.event_types)
    delete_event_type = Method(catalogue.delete_event_type)
    event_type_settings = Method(catalogue.event_type_settings)
    change_event_type_settings = Method(catalogue.change_event_type_settings)
    create_family = Method(cluster.create_family)
    change_family = Method(cluster.change_family)
    family = Method(cluster.family)
    families = Method(cluster.families)
    delete_family = Method(cluster.delete_family)
    pause_family = Method(cluster.pause_family)
    resume_family = Method(cluster.resume_family)
    drain_family = Method(cluster.drain_family)
    hosts = Method(cluster.hosts)
    plan = Method(cluster.plan)
    trace = Method(cluster.trace)
    trace_delivery = Method(cluster.trace_delivery)


class AsyncPushClient(Operations, AsyncApi):
    """A client of the push service for code with an event loop; see `AsyncApi` and `Operations`."""


class PushClient(Operations, Api):
    """A client of the push service for code without an event loop; see `Api` and `Operations`."""
