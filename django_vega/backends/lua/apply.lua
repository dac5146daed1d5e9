-- APPLY: do what a coordinator decided, if the key is still at the version that it saw.
--
-- Arguments: as intent.lua, then 9 version, 10 choice (proceed, reuse, queue, drop),
--            11 capacity (-1: unbounded), 12 token of the peer to reuse, 13... tokens to cancel
-- Returns:   as intent.lua, or STALE: the key has changed, nothing was done
-- Guarantees: compare and set are one step. The same decision applied again gets the same reply.

local version, choice, capacity, peer =
  tonumber(ARGV[9]), ARGV[10], tonumber(ARGV[11]), ARGV[12]

sweep()

local ticket = read(TOKEN)
if ticket and ticket.applied == version then
  return finish(ticket.reply)
elseif ticket and ticket.state == 'spent' and ticket.reason ~= 'answered' then
  return finish({'ENDED', ticket.reason})
elseif changed or version ~= number_of('version') then
  return finish({'STALE'})
end

local doomed = {}
for place = 13, #ARGV do
  doomed[ARGV[place]] = true
end
if choice == 'queue' and capacity >= 0 then
  local parked, busy = 0, first(FLIGHTS) or first(STOPPING)
  for _, token in ipairs(redis.call('ZRANGE', QUEUE, 0, -1)) do
    busy = true
    parked = parked + (doomed[token] and 0 or 1)
  end
  if busy and parked >= capacity then
    return finish({'FULL', holder()})
  end
end

ticket = new_ticket(1)
local reply
if choice == 'reuse' then
  reply = follower(peer)
elseif choice == 'drop' then
  reply = {'DROPPED', holder()}
end
for place = 13, #ARGV do
  ticket.cancelled[#ticket.cancelled + 1] = cancel(ARGV[place], 'abort')
end
if choice == 'queue' and (first(FLIGHTS) or first(STOPPING) or first(QUEUE)) then
  ticket.cancelled = {} -- whoever decided knows; it is no news when the ticket has its turn
  park(TOKEN, ticket)
  reply = queued(TOKEN)
elseif not reply then
  start(TOKEN, ticket, FLOOR)
  reply = leader(ticket)
end
ticket.applied, ticket.reply = version, reply
if ticket.state then
  write(TOKEN, ticket)
else
  ticket.state, ticket.reason = 'spent', 'answered'
  write(TOKEN, ticket, now + SPENT)
end
return finish(reply)
