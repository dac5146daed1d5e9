-- SNAPSHOT: what there is of a key.
--
-- Returns:   version, newest generation, key (text), flights, stopping, parked, followers; the first
--            three lists oldest first, each entry {token, process, generation or 0, age, left, about}
-- Guarantees: one moment. The version changes with flights, stopping and parked, and never comes back.

sweep()

local function entries(key)
  local found = {}
  for place, token in ipairs(redis.call('ZRANGE', key, 0, -1)) do
    local ticket = read(token)
    found[place] =
      {token, ticket.process, ticket.generation or 0, age(ticket), left(token), ticket.about}
  end
  return found
end

finish()
return {
  number_of('version'),
  newest(),
  redis.call('HGET', META, 'key') or '',
  entries(FLIGHTS),
  entries(STOPPING),
  entries(QUEUE),
  redis.call('SMEMBERS', FOLLOWERS),
}
