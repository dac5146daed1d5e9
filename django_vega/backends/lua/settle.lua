-- SETTLE: give a flight its one outcome.
--
-- Arguments: 1 token, 2 generation, 3 retain (0: nobody can want it), 4 kind (v value, e error,
--            c cancelled), 5 payload, 6 lease of a body that still runs (0: it has ended)
-- Returns:   OK | LOST reason
-- Guarantees: outcome, removal and the hint to each registered process are one step. OK also where the
--            lease had passed, or the server forgot it, and nobody newer was admitted. A body that
--            still runs keeps its place in front of a queue until ABANDON, or its lease ends.

local token, generation, retain = ARGV[1], tonumber(ARGV[2]), ARGV[3] * 1000
local kind, payload, lease = ARGV[4], ARGV[5], ARGV[6] * 1000

sweep()

local ticket = read(token)
local runs = ticket and ticket.state == 'running' and ticket.generation == generation
if ticket and not runs then
  if ticket.reason == 'settled' and ticket.generation == generation then
    return finish({'OK'})
  elseif ticket.state == 'stopping' and lease == 0 then
    spend(token, ticket.reason)
  end
  return finish({'LOST', ticket.reason or 'taken'})
elseif not ticket and number_of('admitted') > generation then
  return finish({'LOST', 'taken'})
end

if ticket and lease > 0 then
  take_out(token)
  redis.call('ZADD', STOPPING, text(generation), token)
  ticket.state, ticket.reason = 'stopping', 'settled'
  write(token, ticket, now + lease)
else
  spend(token, 'settled', generation)
end
conclude(generation, kind, payload, retain)
return finish({'OK'})
