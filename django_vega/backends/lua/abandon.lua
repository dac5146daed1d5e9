-- ABANDON and LEAVE: a leader, a parked ticket or a follower goes without an outcome.
--
-- Arguments: 1 token, 2 process whose last waiter this is, or empty
-- Returns:   OK
-- Guarantees: afterwards the token neither leads nor waits, not even where its ADMIT arrives later,
--            and followers of a flight that it led elect a new leader at once.

local token, process = ARGV[1], ARGV[2]

sweep()

if process ~= '' then
  redis.call('SREM', FOLLOWERS, process)
  redis.call('ZREM', ENDS, 'w' .. process)
end
local ticket = read(token)
if ticket and ticket.state == 'running' then
  wake()
end
if not ticket or ticket.reason == 'answered' then
  spend(token, 'abandoned')
elseif ticket.state ~= 'spent' then
  spend(token, ticket.reason or 'abandoned', ticket.generation)
end
return finish({'OK'})
