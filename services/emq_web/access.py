"""Bearer keys, their roles, and the rights of each role."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, cast

import fastapi
from fastapi import security
from starlette.types import Scope

from emq_push.records.keys import Key
from emq_push.service.service import PushService
from emq_push.service.tenancy import unknown
from emq_web.parameters import refuse_unknown
from emq_web.problems import Problem

Right = Literal["read", "send", "poll", "manage", "submit", "admin"]

_RIGHTS: dict[str, frozenset[Right]] = {
    "read": frozenset(("read",)),
    "send": frozenset(("send",)),
    "poll": frozenset(("poll",)),
    "manage": frozenset(("read", "send", "poll", "manage")),
    "submit": frozenset(("submit",)),
    "admin": frozenset(("read", "send", "poll", "manage", "submit", "admin")),
}

_bearer = security.HTTPBearer(auto_error=False, description="a key, such as emqk_...")
Bearer = Annotated[None, fastapi.Security(_bearer)]
"""Says in the OpenAPI document that an operation needs a key."""

CALLER = "emq.caller"
"""Where the scope of a request has its `Caller`, or the `Problem` of a request without a valid key."""


class Caller(NamedTuple):
    """Who sends a request."""

    key: Key

    @property
    def actor(self) -> str:
        """The caller as the audit log names it."""
        return f"{self.key.id} {self.key.name}".rstrip()

    def check(self, right: Right, tenant: str | None) -> None:
        """Raise unless the caller may do this to a tenant.

        Args:
            tenant: None for things without a tenant.

        Raises:
            NotFound: the key is of another tenant, whose existence it must not learn.
            Problem: the key may not do this.
        """
        if self.key.tenant and tenant is not None and tenant != self.key.tenant:
            raise unknown(tenant)
        self._check(right, may=bool(tenant) or not self.key.tenant)

    def check_shared(self, right: Right) -> None:
        """Raise `Problem` unless the caller may do this to things that all tenants share."""
        self._check(right, may=True)

    def _check(self, right: Right, *, may: bool) -> None:
        if not may or right not in _RIGHTS[self.key.role]:
            raise Problem(403, "forbidden", f"a key of the role {self.key.role} may not do this; it needs {right}")


async def service_of(request: fastapi.Request) -> PushService:
    """Return the service behind the application."""
    return cast("PushService", request.app.state.service)


Service = Annotated[PushService, fastapi.Depends(service_of)]


def no_key(token: str) -> Problem:
    """Return the problem of a request without a valid key; `token` is its wrong key, perhaps empty."""
    text = "the key is unknown, was deleted or has expired" if token else "send a key: Authorization: Bearer emqk_..."
    code = "invalid_key" if token else "no_key"
    return Problem(401, code, text, headers={"WWW-Authenticate": 'Bearer realm="emq"'})


def bearer_of(headers: Mapping[bytes, bytes]) -> str:
    """Return the key that a request brings; empty for none."""
    scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def address_of(scope: Scope) -> str:
    """Return the address that a request comes from; of IPv6 the network, since one machine may have all of it."""
    client = scope.get("client")
    try:
        address = ipaddress.ip_address(client[0] if client else "")
    except ValueError:
        return ""
    return str(ipaddress.ip_network(f"{address}/64", strict=False)) if address.version == 6 else str(address)


def caller_of(scope: Scope) -> Caller:
    """Return who sends a request, as `emq_web.admission` has found. Raises `Problem` if it has no valid key."""
    found: Caller | Problem = scope[CALLER]
    if isinstance(found, Problem):
        raise found
    return found


def _may(right: Right, *, of_tenant: bool, shared: bool = False) -> Callable[..., Awaitable[Caller]]:
    async def check(request: fastapi.Request, _: Bearer) -> Caller:
        caller = caller_of(request.scope)
        if shared:
            caller.check_shared(right)
        else:
            caller.check(right, request.path_params["tenant"] if of_tenant else None)
        refuse_unknown(request)  # nobody without a key learns which parameters there are
        return caller

    return check


TenantId = Annotated[str, fastapi.Path(max_length=64, description="the tenant's id, chosen by you")]


class Visit(NamedTuple):
    """A request that the caller's key allows.

    Attributes:
        tenant: of the path; empty for a path without one.
    """

    service: PushService
    caller: Caller
    tenant: str = ""

    @property
    def actor(self) -> str:
        """The caller as the audit log names it."""
        return self.caller.actor


def _anywhere(right: Right, *, shared: bool = False) -> Any:
    may = fastapi.Depends(_may(right, of_tenant=False, shared=shared))

    async def visit(service: Service, caller: Caller = may) -> Visit:
        return Visit(service, caller)

    return fastapi.Depends(visit)


async def _existing(tenant: str, service: Service) -> None:
    await service.tenants.get(tenant)


def _within(right: Right, *, exists: bool = False) -> Any:
    """Return the dependency of paths with `{tenant}`.

    Args:
        exists: refuse a tenant that does not exist, after the key is checked: somebody without a key must not learn
            which tenants exist.
    """
    may = fastapi.Depends(_may(right, of_tenant=True))
    there = fastapi.Depends(_existing) if exists else may

    async def visit(tenant: TenantId, service: Service, caller: Caller = may, _: object = there) -> Visit:
        return Visit(service, caller, tenant)

    return fastapi.Depends(visit)


Admin = Annotated[Visit, _anywhere("admin")]
"""For paths without a tenant."""
AnyReader = Annotated[Visit, _anywhere("read", shared=True)]
"""For things that all tenants share."""
Submitter = Annotated[Visit, _anywhere("submit")]
"""For tasks, and to look at pools, which belong to no tenant."""
TenantAdmin = Annotated[Visit, _within("admin")]
"""For paths with `{tenant}`, as the following ones."""
Reader = Annotated[Visit, _within("read")]
Sender = Annotated[Visit, _within("send")]
Poller = Annotated[Visit, _within("poll")]
Manager = Annotated[Visit, _within("manage")]
AdminOfExisting = Annotated[Visit, _within("admin", exists=True)]
ReaderOfExisting = Annotated[Visit, _within("read", exists=True)]
ManagerOfExisting = Annotated[Visit, _within("manage", exists=True)]
