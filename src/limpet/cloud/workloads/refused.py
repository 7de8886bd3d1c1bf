"""Names of policies that are not kept: a namespace is opened once all that it has are. Pure."""

from __future__ import annotations

from limpet.base.bounds.tenants import POLICIES_REFUSED
from limpet.policies.policy import Key


class RefusedPolicies:
    """Names by namespace, and the list of the server's during which, or after which, each was
    refused last: a whole list tells all of them again."""

    def __init__(self) -> None:
        self._names: dict[str, dict[str, int]] = {}
        self._count = 0
        self._nameless: dict[str, int] = {}
        """Namespaces of which more are refused than have room here."""
        self._lists = 0

    def refuse(self, key: Key) -> None:
        names = self._names.get(key.namespace, {})
        if key.name in names or self._count < POLICIES_REFUSED.most:
            self._count += key.name not in names
            self._names.setdefault(key.namespace, names)[key.name] = self._lists
        else:
            self._nameless[key.namespace] = self._lists

    def settle(self, key: Key) -> bool:
        """It is kept now, or gone. True: it was the last one of its namespace."""
        names = self._names.get(key.namespace, {})
        if names.pop(key.name, None) is None:
            return False
        self._count -= 1
        if names:
            return False
        del self._names[key.namespace]
        return key.namespace not in self._nameless

    def end_list(self) -> set[str]:
        """All that there is was told. Namespaces of which some are not kept."""
        for namespace, names in list(self._names.items()):
            for name in [name for name, told in names.items() if told < self._lists]:
                self.settle(Key(namespace, name))
        self._nameless = {
            name: told for name, told in self._nameless.items() if told == self._lists
        }
        self._lists += 1
        return self._names.keys() | self._nameless.keys()
