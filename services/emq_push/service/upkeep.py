"""What the service does by itself: sends what a crash left unsent, completes changes, and forgets what is old."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence

import sqlalchemy as sa

from emq.runtime import errors
from emq_push.records.accepted import Accepted
from emq_push.records.endpoints import Endpoint, Endpoints
from emq_push.records.messages import Messages
from emq_push.records.tenants import Tenant, Tenants
from emq_push.service.endpoints import EndpointService
from emq_push.service.erasing import Erasing
from emq_push.service.parts import Parts
from emq_push.service.publishing import LOOK_S, Publishing
from emq_push.service.refusals import Refused
from emq_push.service.tenants import TenantService

log = logging.getLogger(__name__)

TIDY_S = 10.0
"""Seconds between two looks for payloads that are to be deleted once they are delivered."""
ROUND_EVERY = 30
"""Every so many looks, the service goes round all tenants for what is old: every five minutes, about two seconds of CPU
for 20,000 tenants."""
SLACK_US = 60_000_000
"""Microseconds by which the clocks of processes that change tenants may differ from ours."""
REPEATS_US = 24 * 3_600_000_000
"""Microseconds for which an Idempotency-Key is known: 24 hours."""
SOME = 500
"""Most rows of one transaction, so that it holds up nobody."""
MOST_ROUNDS = 200
"""Most transactions for one kind of old rows in one look; the next look goes on."""
PAGE = 200


@contextlib.contextmanager
def _alone(what: str) -> Iterator[None]:
    """Let an error of one tenant or endpoint, such as a damaged row, keep the upkeep from no other."""
    try:
        yield
    except errors.DatabaseUnavailable:
        raise
    except Exception:
        log.exception("%s: the next look tries again", what)


class Upkeep:
    """The loops of the service. Several processes may run them at once."""

    def __init__(
        self,
        parts: Parts,
        tenants: TenantService,
        endpoints: EndpointService,
        erasing: Erasing,
        publishing: Publishing,
    ) -> None:
        self._parts, self._of_tenants, self._of_endpoints = parts, tenants, endpoints
        self._erasing, self._publishing = erasing, publishing
        environment = parts.environment
        self._accepted = Accepted(environment)
        self._messages = Messages(environment)
        self._endpoints = Endpoints(environment)
        self._delivered_us: dict[str, int] = {}
        self._tenants = Tenants(environment)
        self._erasing_after = ("", "")
        self._deleting: set[str] = set()  # tenants whose delivered payloads are to be deleted
        self._seen_us = 0  # changes of tenants before this time are known

    async def send_left(self) -> None:
        """Send what another process has left unsent, every `LOOK_S`. Never ends."""
        while True:
            try:
                if count := await self._publishing.send_left():
                    log.warning("sent %d messages that an earlier process had accepted and not sent", count)
            except errors.EMQError as exc:
                log.warning("messages left unsent wait: %s", exc)
            except Exception:  # such as a damaged row; the next look must come
                log.exception("messages left unsent wait")
            await asyncio.sleep(LOOK_S)

    async def tidy(self) -> None:
        """Complete what a crash left half done, and forget what is old, every `TIDY_S`. Never ends."""
        for look in itertools.count():
            try:
                await (self.tidy_delivered() if look % ROUND_EVERY else self.tidy_once())
            except errors.EMQError as exc:
                log.warning("old messages are deleted later: %s", exc)
            except Exception:  # such as a damaged row; the next look must come
                log.exception("old messages are deleted later")
            await asyncio.sleep(TIDY_S)

    async def tidy_once(self) -> None:
        """Forget old idempotency keys, messages and payloads; end secrets whose overlap is over."""
        now_us = self._parts.now_us()
        await self._parts.write(lambda c: self._accepted.forget_repeats(c, now_us - REPEATS_US))
        await self._repeated(lambda c: self._messages.delete_expired(c, now_us, SOME))
        cursor = ""
        while True:
            page = await self._of_tenants.page(PAGE, cursor)
            await self._tidy(page.rows, now_us)
            if not (cursor := page.next):
                break
        await self.tidy_delivered()

    async def follow_changes(self) -> None:
        """Look at the tenants that were changed: complete what a crash left half done, and note who wants what."""
        now_us, since_us = self._parts.now_us(), self._seen_us
        changed = await self._parts.read(lambda c: self._tenants.changed_since(c, since_us))
        for each in changed:
            deletes = each.settings.delete_on_success and not each.is_going
            (self._deleting.add if deletes else self._deleting.discard)(each.id)
        for start in range(0, len(changed), PAGE):
            if count := await self._of_tenants.complete(changed[start : start + PAGE]):
                log.info("%d tenants were changed half-way, or just now; their topics follow", count)
        self._seen_us = now_us - SLACK_US

    async def tidy_delivered(self) -> None:
        """Complete changes and erasures, and delete delivered payloads of the tenants that want it."""
        await self.follow_changes()
        await self._go_on_erasing()
        for tenant in sorted(self._deleting):
            with _alone(f"delivered payloads of tenant {tenant}"):
                await self._repeated(lambda c, of=tenant: self._erase_delivered(c, of))  # type: ignore[misc]

    async def _tidy(self, tenants: Sequence[Tenant], now_us: int) -> None:
        """Delete old payloads of a page of tenants, and end their old secrets. Without any, this is one read."""
        before_us = {t.id: now_us - t.settings.payload_retention_s * 1_000_000 for t in tenants}

        def look(connection: sa.Connection) -> tuple[list[str], list[Endpoint]]:
            old = [id_ for id_, us in before_us.items() if self._messages.has_older(connection, id_, us)]
            found = self._endpoints.of_tenants(connection, list(before_us))
            return old, [endpoint for endpoint in found if 0 < endpoint.old_secret_until_us < now_us]

        old, rotated = await self._parts.read(look)
        for id_ in old:
            with _alone(f"old payloads of tenant {id_}"):
                await self._erase_old(id_, before_us[id_])
        for endpoint in rotated:
            with _alone(f"the old secret of endpoint {endpoint.topic}"):
                await self._end_old_secret(endpoint)

    def _erase_delivered(self, connection: sa.Connection, tenant: str) -> int:
        since_us = self._delivered_us.get(tenant, 0)
        count = self._messages.erase_delivered(connection, tenant, since_us, SOME)
        # The next look begins at the oldest payload that is left.
        oldest_us = self._messages.oldest_us(connection, tenant, since_us)
        self._delivered_us[tenant] = since_us if oldest_us is None else oldest_us
        return count

    async def _erase_old(self, tenant: str, before_us: int) -> None:
        for _ in range(MOST_ROUNDS):
            if await self._erasing.erase_old(tenant, before_us, SOME) < SOME:
                return

    async def _go_on_erasing(self) -> None:
        """Go on with some messages of keys that are to be forgotten; the next look goes on behind them."""
        for _ in range(MOST_ROUNDS):
            place = await self._erasing.go_on(self._erasing_after, SOME)
            self._erasing_after = place or ("", "")
            if place is None:
                return

    async def _end_old_secret(self, endpoint: Endpoint) -> None:
        with contextlib.suppress(Refused, errors.UnknownTopic):  # it was deleted meanwhile
            await self._of_endpoints.drop_old_secret(endpoint.tenant, endpoint.id)

    async def _repeated(self, some: Callable[[sa.Connection], int]) -> None:
        """Run a transaction again and again, until nothing is left."""
        for _ in range(MOST_ROUNDS):
            if await self._parts.write(some) < SOME:
                return
