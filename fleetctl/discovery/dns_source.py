"""Names whose answers are targets: SRV records with their ports, A and AAAA records with a given one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fleetctl.discovery.source import ADDRESS, SourceError, Target
from fleetctl.settings.targets import DnsTargets

if TYPE_CHECKING:
    from dns.asyncresolver import Resolver

LIMIT_S = 10.0  # of one name's look-up, all servers together
NAME = "__meta_dns_name"


class DnsSource:
    """The answers of some names. A name that does not exist lists nothing; one that nobody answers for is not known."""

    def __init__(self, settings: DnsTargets, resolver: Resolver | None = None) -> None:
        """`resolver`: of this machine, unless another one is given."""
        self._settings = settings
        self._resolver = resolver
        self.name = f"dns {', '.join(settings.names)}"
        self.interval_s = settings.refresh_interval

    async def read(self) -> Sequence[Target]:
        """As the servers answer now. Raises SourceError."""
        return [target for name in self._settings.names for target in await self._look_up(name)]

    async def _look_up(self, name: str) -> list[Target]:
        import dns.exception  # only where names are looked up
        import dns.resolver

        try:
            answer = await self._own_resolver().resolve(name, self._settings.type, lifetime=LIMIT_S, search=True)
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
            return []
        except (dns.exception.DNSException, OSError) as error:
            told = " ".join(str(error).split())[:200] or type(error).__name__
            raise SourceError(f"dns {name}: {self._settings.type}: {told}") from error
        addresses = sorted(self._address(record) for record in answer)
        return [Target({ADDRESS: address, NAME: name}) for address in addresses]

    def _address(self, record: object) -> str:
        if self._settings.type == "SRV":
            return f"{str(getattr(record, 'target')).rstrip('.')}:{getattr(record, 'port')}"  # noqa: B009
        host = str(getattr(record, "address"))  # noqa: B009
        return f"[{host}]:{self._settings.port}" if ":" in host else f"{host}:{self._settings.port}"

    def _own_resolver(self) -> Resolver:
        import dns.asyncresolver

        if self._resolver is None:
            try:
                self._resolver = dns.asyncresolver.Resolver()
            except Exception as error:  # whatever is wrong with resolv.conf
                raise SourceError(f"{self.name}: this machine has no resolver: {error}") from error
        return self._resolver
