-- RENEW: go on leading.
--
-- Arguments: 1 token, 2 process, 3 lease, 4 retain, 5 about, 6 generation, 7 limit (0: none),
--            8 beat (the number of this heartbeat)
-- Returns:   OK | RESTORED | LOST reason
-- Guarantees: RESTORED when the lease had passed, or the server forgot it, and nobody newer was
--            admitted meanwhile; then the token leads as before. LOST otherwise: abort (cancelled),
--            released, settled, abandoned, or taken (somebody newer leads). A cancelled flight keeps
--            its place in front of a queue as long as it renews.

local token, process, generation = ARGV[1], ARGV[2], tonumber(ARGV[6])
local lease, limit, beat = ARGV[3] * 1000, tonumber(ARGV[7]), tonumber(ARGV[8])

sweep()

local ticket = read(token)
if ticket and ticket.state == 'running' and ticket.generation == generation then
  write(token, ticket, now + lease)
  return finish({ticket.restored == beat and 'RESTORED' or 'OK'})
elseif ticket then
  if ticket.state == 'stopping' then
    write(token, ticket, now + lease)
  end
  return finish({'LOST', ticket.reason or 'taken'})
end

local full = limit > 0 and redis.call('ZCARD', FLIGHTS) >= limit
if full or number_of('admitted') > generation then
  return finish({'LOST', 'taken'})
end
redis.call('ZADD', FLIGHTS, text(generation), token)
changed = true
write(token, {
  state = 'running',
  process = process,
  since = now,
  lease = lease,
  retain = ARGV[4] * 1000,
  about = ARGV[5],
  limit = limit,
  generation = generation,
  cancelled = {},
  restored = beat,
}, now + lease)
return finish({'RESTORED'})
