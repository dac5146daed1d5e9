"""A key and all that happens to it: calls with names, scripts run twice, time moved by hand."""

from typing import Any

from django_vega.backends.protocol import Intent, Leader, Outcome
from django_vega.backends.scripts import Client, Scripts
from django_vega.core.strategies import Strategy, strategy_named

SUFFIXES = ("", ":f", ":s", ":q", ":w", ":o", ":t", ":e")

# Everything stored of a key as text, but for when things end: a second run gives a new lease.
DUMP = """
local function shown(value)
  if type(value) ~= 'table' then
    return type(value) == 'number' and string.format('%.0f', value) or tostring(value)
  end
  local parts = {}
  for name, item in pairs(value) do
    parts[#parts + 1] = shown(name) .. '=' .. shown(item)
  end
  table.sort(parts)
  return '{' .. table.concat(parts, ' ') .. '}'
end
local function mapping(key, read)
  local pairs_of, found = redis.call('HGETALL', key), {}
  for place = 1, #pairs_of, 2 do
    found[pairs_of[place]] = read(pairs_of[place + 1])
  end
  return shown(found)
end
local function scored(key)
  return shown(redis.call('ZRANGE', key, 0, -1, 'WITHSCORES'))
end
local ends, followers = redis.call('ZRANGE', KEYS[8], 0, -1), redis.call('SMEMBERS', KEYS[5])
table.sort(ends)
table.sort(followers)
return {
  mapping(KEYS[1], tostring),
  scored(KEYS[2]),
  scored(KEYS[3]),
  scored(KEYS[4]),
  shown(followers),
  scored(KEYS[6]),
  mapping(KEYS[7], cmsgpack.unpack),
  shown(ends),
}
"""


def keys(key_hash: str) -> list[str]:
    """The keys of a key hash, in the scripts' order."""
    return [f"vega:{{{key_hash}}}{suffix}" for suffix in SUFFIXES]


class Twice:
    """A client that runs every script twice, as redis-py does when a reply is lost.

    The second run has to give the same reply and leave the same state; only times go on.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def execute_command(self, *args: Any, **options: Any) -> Any:
        reply = self._client.execute_command(*args, **options)
        if args[0] in {"EVALSHA", "EVAL"}:
            names = args[3 : 3 + args[2]]
            state = self._client.execute_command("EVAL", DUMP, len(names), *names)
            again = self._client.execute_command(*args, **options)
            assert timeless(again) == timeless(reply)
            after = self._client.execute_command("EVAL", DUMP, len(names), *names)
            assert after == state
        return reply


def timeless(reply: Any) -> Any:
    """Return a reply without age and what is left, which holders and tickets have."""
    match reply:
        case [bytes(), int(), int(), int()]:
            return reply[:2]
        case [bytes(), bytes(), int(), int(), int(), bytes()]:
            return [*reply[:3], reply[5]]
        case list():
            return [timeless(item) for item in reply]
    return reply


class Desk:
    """One key on one server.

    Args:
        client: Of the server.
        key_hash: Stands for the key; nobody else's.
    """

    def __init__(self, client: Client, key_hash: str) -> None:
        self.client = client
        self.key_hash = key_hash
        self.scripts = Scripts(Twice(client))
        self.generations: dict[str, int] = {}

    @property
    def keys(self) -> list[str]:
        return keys(self.key_hash)

    def intent(self, token: str, **more: Any) -> Intent:
        """Return the intent of a call, by default from a process of its own."""
        return Intent(token, more.pop("process", f"process-of-{token}"), **more)

    def admit(
        self,
        token: str,
        rule: str | Strategy = "dedupe",
        *,
        capacity: int | None = 100,
        want: int = 0,
        **more: Any,
    ) -> Any:
        """Admit a call under a strategy."""
        strategy = strategy_named(rule) if isinstance(rule, str) else rule
        reply = self.scripts.admit(
            self.key_hash,
            self.intent(token, **more),
            limit=strategy.limit,
            when_full=strategy.when_full,
            capacity=capacity,
            want=want,
        )
        if isinstance(reply, Leader):
            self.generations[token] = reply.generation
        return reply

    def lead(self, token: str, rule: str | Strategy = "none", **more: Any) -> int:
        """Admit a call that leads, and return its generation."""
        reply = self.admit(token, rule, **more)
        assert isinstance(reply, Leader)
        return reply.generation

    def next(self, token: str) -> Any:
        """Admit a call that needs a run which begins later."""
        return self.scripts.admit(self.key_hash, self.intent(token), limit=1, when_full="next")

    def look(self, token: str, want: int, **more: Any) -> Any:
        """Ask how a follower stands."""
        return self.scripts.look(self.key_hash, self.intent(token, **more), want=want)

    def apply(self, token: str, choice: Any, *, version: int | None = None, **more: Any) -> Any:
        """Apply a decision, by default on the present version."""
        version = self.snapshot().version if version is None else version
        reply = self.scripts.apply(
            self.key_hash, self.intent(token), version=version, choice=choice, **more
        )
        if isinstance(reply, Leader):
            self.generations[token] = reply.generation
        return reply

    def settle(self, token: str, value: bytes = b"value", **more: Any) -> Any:
        """Settle a call that has led."""
        outcome = Outcome("value", value)
        return self.scripts.settle(self.key_hash, token, self.generations[token], outcome, **more)

    def renew(self, token: str, *, beat: int = 1, limit: int | None = 1) -> Any:
        """Send a heartbeat of a call that has led."""
        return self.scripts.renew(
            self.key_hash,
            self.intent(token),
            generation=self.generations[token],
            limit=limit,
            beat=beat,
        )

    def abandon(self, token: str) -> None:
        """Abandon a call."""
        self.scripts.abandon(self.key_hash, token)

    def snapshot(self) -> Any:
        """Return what there is."""
        return self.scripts.snapshot(self.key_hash)

    def picture(self) -> tuple[list[str], list[str], list[str]]:
        """Return the tokens that run, are stopping, and are parked."""
        now = self.snapshot()
        return tuple(
            [one.token for one in part] for part in (now.flights, now.stopping, now.parked)
        )

    def lapse(self, *tokens: str) -> None:
        """Let the leases of tokens be over: whoever looks next finds them ended."""
        for token in tokens:
            self.end(f"t{token}")

    def end(self, entry: str) -> None:
        """Let the time of an entry be over: ``t`` token, ``o`` generation, ``w`` process."""
        changed = self.client.execute_command("ZADD", self.keys[7], "XX", "CH", 1, entry)
        assert changed == 1, f"there is no {entry} to end"

    def forget(self) -> None:
        """Let the server lose the key, as FLUSHALL and a restart do."""
        self.client.execute_command("DEL", *self.keys)
