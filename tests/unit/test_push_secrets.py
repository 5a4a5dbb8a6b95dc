"""Secrets of endpoints: encrypted in the catalog, shown nowhere."""

from __future__ import annotations

import base64
import json
import os
import sqlite3
import tomllib
from pathlib import Path

import msgspec
import pytest

from emq import App
from emq.runtime import errors
from emq.runtime.settings import load, shown
from emq.storage.message import Message
from emq.topics import catalog_file, model, secret_attributes
from emq_push.endpoint import Endpoint, Endpoints
from emq_push.pusher import Pusher
from emq_push.secrets import Secrets, reencrypt
from emq_push.service.topic_fields import Auth, TopicFields
from support.emq_shell import Shell

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
KEYS = [base64.b64encode(bytes([i]) * 32).decode() for i in range(3)]


def secrets(*keys: str) -> Secrets:
    return Secrets.of_setting(load(environ={}, secret_key=" ".join(keys)))


def test_what_is_encrypted_can_be_decrypted_with_its_key_only() -> None:
    kept = secrets(KEYS[0]).encrypt("hunter22 ü")
    assert kept.startswith("enc:v1:")
    assert "hunter22" not in kept
    assert kept != secrets(KEYS[0]).encrypt("hunter22 ü"), "equal secrets cannot be told by their texts"
    assert secrets(KEYS[0]).decrypt(kept) == "hunter22 ü"
    with pytest.raises(ValueError, match="encrypted with another key"):
        secrets(KEYS[1]).decrypt(kept)
    with pytest.raises(ValueError, match="encrypted with a key"):
        secrets().decrypt(kept)
    with pytest.raises(ValueError, match="it was changed since"):
        secrets(KEYS[0]).decrypt(kept[:-6] + "AAAA==")


def test_a_key_is_changed_while_both_are_known() -> None:
    old = secrets(KEYS[0]).encrypt("hunter22")
    both = secrets(KEYS[1], KEYS[0])
    assert both.decrypt(old) == "hunter22"
    assert not both.is_current(old)
    new = both.encrypt(both.decrypt(old))
    assert both.is_current(new)
    assert secrets(KEYS[1]).decrypt(new) == "hunter22"


def test_without_a_key_secrets_stay_as_they_are() -> None:
    assert secrets().encrypt("hunter22") == "hunter22"
    assert secrets(KEYS[0]).decrypt("hunter22") == "hunter22"
    kept = secrets(KEYS[0]).encrypt("hunter22")
    assert secrets(KEYS[0]).encrypt(kept) == kept


def test_keys_come_from_a_file_too(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"{KEYS[1]}\n{KEYS[2]}\n")
    found = Secrets.of_setting(load(environ={}, secret_key=KEYS[0], secret_key_file=str(tmp_path / "keys")))
    assert found.encrypts
    assert found.decrypt(secrets(KEYS[2]).encrypt("x")) == "x"
    assert found.encrypt("x").startswith(secrets(KEYS[0]).encrypt("x")[:15])
    with pytest.raises(errors.InvalidSettings, match=r"secret_key_file .* cannot be read: No such file"):
        Secrets.of_setting(load(environ={}, secret_key_file=str(tmp_path / "nothing")))


@pytest.mark.parametrize(("key", "text"), [("s3cret!", "not base64"), ("czNjcmV0", "a key of 6 bytes")])
def test_a_key_that_is_none_is_refused_and_not_shown(key: str, text: str) -> None:
    with pytest.raises(errors.InvalidSettings, match=text) as caught:
        secrets(key)
    assert key not in str(caught.value)


def test_the_key_is_not_shown_among_the_settings() -> None:
    assert KEYS[0] not in json.dumps(shown(load(environ={}, secret_key=KEYS[0])))


def test_an_endpoint_decrypts_its_secrets() -> None:
    one = secrets(KEYS[0])
    attributes = {
        "push.url": "http://shop.example/",
        "push.secret": one.encrypt(SECRET),
        "push.basic": one.encrypt("user:hunter22"),
        "push.headers.X-Key": one.encrypt("hunter33"),
    }
    topic = model.Topic("t", 1.0, options=model.TopicOptions(attributes=attributes))
    found = Endpoint.from_topic(topic, one)
    assert found is not None
    assert found.signed is not None
    assert found.headers["X-Key"] == "hunter33"
    assert found.masked("hunter22 and hunter33") == "*** and ***"
    with pytest.raises(
        errors.InvalidTopic, match=r"push\.secret is encrypted with a key .* set secret_key on this host"
    ):
        Endpoint.from_topic(topic)


async def test_a_host_without_the_key_gives_messages_back_uncounted() -> None:
    attributes = {"push.url": "http://shop.example/", "push.secret": secrets(KEYS[0]).encrypt(SECRET)}
    topic = model.Topic("t", 1.0, options=model.TopicOptions(attributes=attributes))
    async with Pusher(Endpoints(lambda _: topic, secrets(KEYS[1]))) as push:
        with pytest.raises(errors.GiveBack, match=r"^this host: topic 't': push\.secret is encrypted with") as caught:
            await push(Message("id1", b"{}", topic="t"))
    assert caught.value.pause_s > 10


# -------------------------------------------------------------------------------------------------------- command line


SET = (
    *("push.url=http://shop.example/", f"push.secret={SECRET}", "push.basic=user:hunter22"),
    *("push.headers.X-Key=hunter33",),
)
SECRETS = (SECRET[6:], "hunter22", "hunter33")


def kept() -> str:
    with sqlite3.connect("emq.db") as connection:
        return str(connection.execute("SELECT body FROM emq_topics").fetchone()[0])


@pytest.mark.parametrize("key", ["", KEYS[0]])
def test_no_command_shows_a_secret(emq: Shell, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("EMQ_SECRET_KEY", key)
    pairs = [part for pair in SET for part in ("--set", pair)]
    printed = [
        emq("topic create shop --qps 1", *pairs),
        emq("topic show shop"),
        emq("topic show shop --json"),
        emq("topic list --json"),
        emq("topic export"),
        emq("topic set shop", f"push.secret={SECRET} {SECRET}", "push.batch=5"),
        emq("topic set sho* --yes", "push.basic=user:hunter22"),
        emq.refused("topic set shop", f"push.secret={SECRET} hunter22"),
        emq.refused("topic create shop --qps 2", *pairs),
        emq("settings"),
    ]
    for text in printed:
        assert not [secret for secret in (*SECRETS, KEYS[0]) if secret in text], text
    assert ("hunter22" in kept()) == (not key)
    assert ("enc:v1:" in kept()) == bool(key)


def test_an_import_keeps_the_secrets_that_its_file_masks(emq: Shell) -> None:
    emq("topic create shop --qps 1", *(part for pair in SET for part in ("--set", pair)))
    emq("topic export -o masked.toml")
    emq("topic export --secrets -o whole.toml")
    assert "1 topic from masked.toml" in emq("topic import masked.toml")
    assert "hunter22" not in Path("masked.toml").read_text()
    assert "hunter22" in Path("whole.toml").read_text()
    assert "hunter22" in kept()
    os.remove("emq.db")
    assert "is masked (***), and there is no value; give it" in emq.refused("topic import masked.toml")
    emq("topic import whole.toml")
    assert "hunter22" in kept()


def secret_of(exported: str) -> object:
    return tomllib.loads(exported)["families"]["shop.*"]["options"]["attributes"]["push.basic"]


@pytest.mark.parametrize("key", ["", KEYS[0]])
def test_an_import_keeps_the_secrets_of_families_that_its_file_masks(
    emq: Shell, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    if key:
        monkeypatch.setenv("EMQ_SECRET_KEY", key)
    pairs = ("push.url=http://example.com/", "push.basic=user:hunter22")
    emq("family create shop.* --qps 1", *(part for pair in pairs for part in ("--set", pair)))
    emq("topic export -o masked.toml")
    before = emq("topic export --secrets")
    assert "1 family and 0 topics from masked.toml" in emq("topic import masked.toml")
    assert secret_of(emq("topic export --secrets")) == secret_of(before)
    os.remove("emq.db")
    assert "family 'shop.*': push.basic is masked (***)" in emq.refused("topic import masked.toml")


def test_masks_stand_for_what_the_topic_has() -> None:
    topic = model.Topic(
        "t", 1.0, options=model.TopicOptions(attributes={"push.url": "u", "push.basic": "a:b", "x": "***"})
    )
    masked = secret_attributes.without_secrets(topic)
    assert masked.options.attributes == {"push.url": "u", "push.basic": "***", "x": "***"}
    assert secret_attributes.unmasked(masked, topic) == topic
    [loaded] = catalog_file.load(catalog_file.dump([topic], "json"), "json")
    assert loaded.options.attributes["push.basic"] == "***"


# ----------------------------------------------------------------------------------------------------- a changed key


def created(emq: Shell) -> None:
    emq("topic create shop --qps 5")
    emq("topic set shop", *SET)


def stored() -> dict[str, str]:
    attributes: dict[str, str] = json.loads(kept())["options"]["attributes"]
    return attributes


def test_secrets_are_encrypted_again_after_the_key_has_changed(emq: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    created(emq)
    monkeypatch.setenv("EMQ_SECRET_KEY", KEYS[0])
    assert "encrypted 3 secrets of 1 topic;" in emq("topic encrypt")
    assert all(text not in kept() for text in SECRETS)
    assert "encrypted 0 secrets of 0 topics; 1 topic looked at" in emq("topic encrypt shop*")
    monkeypatch.setenv("EMQ_SECRET_KEY", f"{KEYS[1]} {KEYS[0]}")
    assert emq.json("topic encrypt") == {"topics": 1, "changed": 1, "secrets": 3, "failed": {}}
    alone = secrets(KEYS[1])
    assert [alone.decrypt(stored()[name]) for name in ("push.secret", "push.basic", "push.headers.X-Key")] == [
        SECRET,
        "user:hunter22",
        "hunter33",
    ]
    assert stored()["push.url"] == "http://shop.example/"


def test_a_secret_under_a_key_that_is_missing_is_named_and_kept(emq: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMQ_SECRET_KEY", KEYS[0])
    created(emq)
    before = kept()
    monkeypatch.setenv("EMQ_SECRET_KEY", KEYS[1])
    emq("topic encrypt", code=1)
    assert "topic 'shop': push.secret is encrypted with another key" in emq.error
    assert kept() == before


def test_without_a_key_nothing_is_encrypted_again(emq: Shell) -> None:
    created(emq)
    assert "there is no key; set secret_key" in emq.refused("topic encrypt", code=2)


async def test_a_secret_that_somebody_sets_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    one = secrets(KEYS[0])
    async with App("memory:") as app:
        await app.create_topic("t", 1, attributes={"push.url": "http://a/", "push.secret": SECRET})
        before = await app.catalog.get("t")
        await app.update_topic("t", attributes={"push.url": "http://a/", "push.secret": one.encrypt("whsec_bmV3ZXI=")})

        async def outdated(name: str) -> model.Topic:
            return before

        monkeypatch.setattr(app.catalog, "get", outdated)
        assert await reencrypt(app.catalog, "t", one) == 0
        [topic] = await app.catalog.list()
        assert one.decrypt(topic.options.attributes["push.secret"]) == "whsec_bmV3ZXI="


# ------------------------------------------------------------------------------------------------------------- repr


def test_no_repr_shows_a_secret() -> None:
    attributes = {"push.url": "http://a/", "push.secret": SECRET, "push.headers.X-Key": "hunter33"}
    topic = model.Topic("t", 1.0, options=model.TopicOptions(attributes=attributes, backoff_s=(1.0,)))
    for text in (repr(topic), str(topic), f"{topic.options}", repr([topic])):
        assert SECRET not in text
        assert "hunter33" not in text
    assert "'push.url': 'http://a/'" in repr(topic)
    assert "backoff_s=(1.0,)" in repr(topic)
    for auth in (Auth("bearer", token="hunter44"), Auth("oauth2", client_id="me", client_secret="hunter44")):
        assert "hunter44" not in repr(auth)
        assert "hunter44" not in repr(TopicFields({"a": "hunter44"}, msgspec.to_builtins(auth)))
