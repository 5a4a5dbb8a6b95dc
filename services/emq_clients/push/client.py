"""The clients of the push service, with each operation of the modules here as a method."""

from __future__ import annotations

from emq_clients.push import catalogue, cluster, messages, operations, polling
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
    preview_payload = Method(operations.preview_payload)
    publish = Method(messages.publish)
    publish_many = Method(messages.publish_many)
    poll = Method(polling.poll)
    acknowledge = Method(polling.acknowledge)
    stored_message = Method(messages.stored_message)
    stored_messages = Method(messages.stored_messages)
    erase = Method(messages.erase)
    deliveries = Method(messages.deliveries)
    delivery = Method(messages.delivery)
    attempts = Method(messages.attempts)
    endpoint_attempts = Method(messages.endpoint_attempts)
    resend = Method(messages.resend)
    cancel = Method(messages.cancel)
    count_replay = Method(messages.count_replay)
    start_replay = Method(messages.start_replay)
    replay = Method(messages.replay)
    replays = Method(messages.replays)
    pause_replay = Method(messages.pause_replay)
    resume_replay = Method(messages.resume_replay)
    cancel_replay = Method(messages.cancel_replay)
    dead_letters = Method(messages.dead_letters)
    count_dead_letters = Method(messages.count_dead_letters)
    replay_dead_letters = Method(messages.replay_dead_letters)
    purge_dead_letters = Method(messages.purge_dead_letters)
    audit_log = Method(operations.audit_log)
    lag = Method(operations.lag)
    rates = Method(operations.rates)
    create_key = Method(operations.create_key)
    create_token = Method(operations.create_token)
    create_portal_link = Method(operations.create_portal_link)
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
