-- What every script of a key shares; scripts.py puts this text before each of them.
--
-- Keys (one slot; each expires LINGER after the last entry of ENDS):
--   1 vega:{h}   hash  version, generation (newest issued), admitted (newest that led), key (its text)
--   2        :f  zset  FLIGHTS    running token -> generation; the holders
--   3        :s  zset  STOPPING   cancelled token whose body still runs -> generation
--   4        :q  zset  QUEUE      parked token -> place in the order of arrival
--   5        :w  set   FOLLOWERS  processes that wait for an outcome
--   6        :o  zset  OUTCOMES   "generation:kind:payload" -> generation
--   7        :t  hash  TICKETS    token -> what is known of it, packed
--   8        :e  zset  ENDS       "t" token, "o" generation or "w" process -> when it ends, in µs
--
-- Guarantees: time is Redis TIME. Whoever looks drops what has ended. A token that is spent stays so
-- for SPENT, so a script that the client library runs again, or that arrives late, changes nothing.
-- Published hints say only "look again at h"; what is true stands in the keys.
-- Wire units are ms; inside, everything is µs. Generations fit 2^53, so they are exact in Lua.

local META, FLIGHTS, STOPPING, QUEUE, FOLLOWERS, OUTCOMES, TICKETS, ENDS = unpack(KEYS)
local SPENT = 20 * 1000000 -- longer than four attempts of a client go on
local LINGER = 60 * 1000000 -- the newest generation outlives the last entry that long

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local changed = false -- whether flights, stopping bodies or queue are not what they were
local hints = {} -- process -> true

local function text(number)
  return string.format('%.0f', number)
end

-- Tickets: {state, process, since, lease, retain, claim, about, limit, generation, reason, ...} with
-- state running, stopping, parked or spent.

local function read(token)
  local packed = redis.call('HGET', TICKETS, token)
  return packed and cmsgpack.unpack(packed)
end

local function write(token, ticket, deadline)
  redis.call('HSET', TICKETS, token, cmsgpack.pack(ticket))
  if deadline then
    redis.call('ZADD', ENDS, text(deadline), 't' .. token)
  end
end

local function take_out(token)
  local found = redis.call('ZREM', FLIGHTS, token)
    + redis.call('ZREM', STOPPING, token)
    + redis.call('ZREM', QUEUE, token)
  changed = changed or found > 0
end

local function spend(token, reason, generation)
  take_out(token)
  write(token, {state = 'spent', reason = reason, generation = generation}, now + SPENT)
end

-- For scripts whose second run could not know by itself what the first one answered.
local function remember(token, reply)
  write(token, {state = 'spent', reason = 'answered', reply = reply}, now + SPENT)
end

-- What is left of the time of a token, in ms.
local function left(token)
  local deadline = token and redis.call('ZSCORE', ENDS, 't' .. token) or 0
  return math.max(0, math.ceil((deadline - now) / 1000))
end

local function age(ticket)
  return math.max(0, math.floor((now - ticket.since) / 1000))
end

local function first(key)
  return redis.call('ZRANGE', key, 0, 0)[1]
end

-- Who stands in the way: {process, generation or 0, age, what is left}.
local function holder()
  local token = first(FLIGHTS) or first(STOPPING) or first(QUEUE)
  local ticket = token and read(token)
  if not ticket then
    return {'', 0, 0, 0}
  end
  return {ticket.process, ticket.generation or 0, age(ticket), left(token)}
end

local function sweep()
  for _, entry in ipairs(redis.call('ZRANGEBYSCORE', ENDS, '-inf', text(now))) do
    local kind, name = string.sub(entry, 1, 1), string.sub(entry, 2)
    if kind == 't' then
      take_out(name)
      redis.call('HDEL', TICKETS, name)
    elseif kind == 'o' then
      redis.call('ZREMRANGEBYSCORE', OUTCOMES, name, name)
    else
      redis.call('SREM', FOLLOWERS, name)
    end
  end
  redis.call('ZREMRANGEBYSCORE', ENDS, '-inf', text(now))
end

-- Generations

local function number_of(field)
  return tonumber(redis.call('HGET', META, field) or 0)
end

local function newest()
  local found = number_of('generation')
  for _, key in ipairs({FLIGHTS, STOPPING}) do
    found = math.max(found, tonumber(redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2] or 0))
  end
  return found
end

local function issue(floor)
  local generation = math.max(newest() + 1, now, floor + 1)
  redis.call('HSET', META, 'generation', text(generation))
  return generation
end

-- Steps

local function start(token, ticket, floor)
  take_out(token)
  ticket.state, ticket.offered, ticket.since = 'running', nil, now
  ticket.generation = issue(floor)
  redis.call('HSET', META, 'admitted', text(ticket.generation))
  redis.call('ZADD', FLIGHTS, text(ticket.generation), token)
  write(token, ticket, now + ticket.lease)
  changed = true
end

local function park(token, ticket)
  local last = tonumber(redis.call('ZRANGE', QUEUE, -1, -1, 'WITHSCORES')[2] or 0)
  ticket.state = 'parked'
  redis.call('ZADD', QUEUE, text(last + 1), token)
  write(token, ticket, now + ticket.lease)
  changed = true
end

local function follow(process, lease)
  redis.call('SADD', FOLLOWERS, process)
  redis.call('ZADD', ENDS, text(now + lease), 'w' .. process)
end

local function wake()
  for _, process in ipairs(redis.call('SMEMBERS', FOLLOWERS)) do
    hints[process] = true
  end
end

-- Store an outcome, if it is to be kept at all, and tell those who wait.
local function conclude(generation, kind, payload, retain)
  if retain > 0 then
    local name = text(generation)
    redis.call('ZREMRANGEBYSCORE', OUTCOMES, name, name)
    redis.call('ZADD', OUTCOMES, name, name .. ':' .. kind .. ':' .. payload)
    redis.call('ZADD', ENDS, text(now + retain), 'o' .. name)
  end
  wake()
  if not (first(FLIGHTS) or first(QUEUE)) then
    redis.call('DEL', FOLLOWERS)
  end
end

-- The first outcome of a range of generations as {'DONE', generation, kind, payload}, or nil.
local function outcome(low, high)
  local member = redis.call('ZRANGEBYSCORE', OUTCOMES, text(low), high, 'LIMIT', 0, 1)[1]
  if not member then
    return nil
  end
  local generation, kind, payload = string.match(member, '^(%d+):(.):(.*)$')
  return {'DONE', tonumber(generation), kind, payload}
end

-- End a flight as cancelled, or a parked ticket; returns {token, process, generation or 0}, or nil.
local function cancel(token, reason)
  local ticket = read(token)
  if not ticket or (ticket.state ~= 'running' and ticket.state ~= 'parked') then
    return nil
  end
  hints[ticket.process] = true
  if ticket.state == 'running' then
    take_out(token)
    ticket.state, ticket.reason = 'stopping', reason
    redis.call('ZADD', STOPPING, text(ticket.generation), token)
    write(token, ticket)
    conclude(ticket.generation, 'c', reason, ticket.retain)
  else
    spend(token, reason)
  end
  return {token, ticket.process, ticket.generation or 0}
end

-- The parked tickets that may start now, in their order: each has room beside those before it.
local function entitled()
  local occupied = redis.call('ZCARD', FLIGHTS) + redis.call('ZCARD', STOPPING)
  local tokens = {}
  while true do
    local token = redis.call('ZRANGE', QUEUE, #tokens, #tokens)[1]
    if not token or occupied + #tokens >= read(token).limit then
      return tokens
    end
    tokens[#tokens + 1] = token
  end
end

local function may_start(token)
  for _, other in ipairs(entitled()) do
    if other == token then
      return true
    end
  end
  return false
end

-- Last of every script: offer free places to the queue, count the version, set expiries, tell.
local function finish(reply)
  for _, token in ipairs(entitled()) do
    local ticket = read(token)
    if not ticket.offered then
      ticket.offered = true
      write(token, ticket, now + ticket.claim)
      hints[ticket.process] = true
    end
  end
  if changed then
    local version = math.max(number_of('version') + 1, now)
    redis.call('HSET', META, 'version', text(version))
  end
  local last = math.max(now, tonumber(redis.call('ZRANGE', ENDS, -1, -1, 'WITHSCORES')[2] or 0))
  for _, key in ipairs(KEYS) do
    redis.call('PEXPIREAT', key, text(math.ceil((last + LINGER) / 1000)))
  end
  for process in pairs(hints) do
    redis.call('PUBLISH', 'vega:inbox:' .. process, string.match(META, '{(.*)}'))
  end
  return reply
end
