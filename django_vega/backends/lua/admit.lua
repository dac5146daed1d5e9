-- ADMIT: what a call does now, by its strategy; asked again with the same token, how it stands.
--
-- Arguments: as intent.lua, then 9 limit (0: none, -1: no place at all),
--            10 when_full (reuse, cancel, queue, drop; next: park, or share what is parked),
--            11 capacity (-1: unbounded), 12 want (0, or the generation whose outcome is wanted)
-- Returns:   as intent.lua, and DONE generation kind payload
-- Guarantees: one step registers the process and tells the state, so no wake-up is lost. A token that
--            leads leads on, with a new lease. An outcome goes to a caller that wants at most its
--            generation, never to a newer one. A parked ticket lives as long as it asks, every lease.

local limit, when_full, capacity, want =
  tonumber(ARGV[9]), ARGV[10], tonumber(ARGV[11]), tonumber(ARGV[12])

sweep()

local reply = known(read(TOKEN))
if reply then
  return finish(reply)
end

if want > 0 then
  local exact = redis.call('ZRANGEBYSCORE', FLIGHTS, text(want), text(want))[1]
  local done = outcome(want, text(want)) or (not exact and outcome(want, '+inf'))
  local wanted = exact or redis.call('ZRANGEBYSCORE', FLIGHTS, text(want), '+inf')[1]
  if limit < 0 then
    wanted = wanted or first(QUEUE)
  end
  if done then
    return finish(done)
  elseif wanted then
    return finish(follower(wanted))
  end
end

local flights = redis.call('ZCARD', FLIGHTS)
local stopping = redis.call('ZCARD', STOPPING)
local parked = redis.call('ZCARD', QUEUE)
local move = when_full
if limit == 0 then
  move = 'proceed'
elseif when_full == 'queue' then
  if flights + stopping < limit and parked == 0 then
    move = 'proceed'
  elseif capacity >= 0 and parked >= capacity then
    move = 'full'
  end
elseif flights + parked < limit then
  move = 'proceed'
elseif when_full == 'next' then
  move = parked > 0 and 'share' or 'queue'
end

if move == 'share' then
  return finish(follower(first(QUEUE)))
elseif move == 'reuse' then
  return finish(follower(first(FLIGHTS) or first(QUEUE)))
elseif move == 'drop' then
  return finish({'DROPPED', holder()})
elseif move == 'full' then
  return finish({'FULL', holder()})
end

local ticket = new_ticket(limit)
if move == 'queue' then
  park(TOKEN, ticket)
  -- There is room beside all before it where these were offered places and have yet to claim them.
  if not may_start(TOKEN) then
    return finish(queued(TOKEN))
  end
elseif move == 'cancel' then
  local surplus = flights + parked - limit + 1
  local oldest = redis.call('ZRANGE', FLIGHTS, 0, surplus - 1)
  for _, token in ipairs(redis.call('ZRANGE', QUEUE, 0, -1)) do
    oldest[#oldest + 1] = token
  end
  for place = 1, surplus do
    ticket.cancelled[place] = cancel(oldest[place], 'abort')
  end
end
start(TOKEN, ticket, FLOOR)
return finish(leader(ticket))
