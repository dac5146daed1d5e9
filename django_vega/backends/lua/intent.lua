-- What admit.lua and apply.lua share: the new call's own arguments, and its replies.
--
-- Arguments: 1 token, 2 process, 3 lease, 4 retain, 5 claim, 6 floor, 7 key (text), 8 about
--
-- Replies: LEADER generation {cancelled: token process generation}
--          FOLLOW generation holder | QUEUED ahead holder | DROPPED holder | FULL holder
--          ENDED reason
-- where a holder is {process, generation, age, left}, times in ms.

local TOKEN, PROCESS, FLOOR = ARGV[1], ARGV[2], tonumber(ARGV[6])
local LEASE, RETAIN, CLAIM = ARGV[3] * 1000, ARGV[4] * 1000, ARGV[5] * 1000

local function new_ticket(limit)
  redis.call('HSET', META, 'key', ARGV[7])
  return {
    process = PROCESS,
    since = now,
    lease = LEASE,
    retain = RETAIN,
    claim = CLAIM,
    about = ARGV[8],
    limit = limit,
    cancelled = {},
  }
end

local function leader(ticket)
  return {'LEADER', ticket.generation, ticket.cancelled}
end

local function queued(token)
  return {'QUEUED', redis.call('ZRANK', QUEUE, token), holder()}
end

local function follower(token)
  local ticket = read(token)
  follow(PROCESS, LEASE)
  -- A parked ticket has no generation yet; whatever it gets will be above the newest.
  local generation = ticket.generation or newest() + 1
  return {'FOLLOW', generation, {ticket.process, ticket.generation or 0, age(ticket), left(token)}}
end

-- What a token that is known already is told; nil for a new one.
local function known(ticket)
  if not ticket or ticket.reason == 'answered' then
    return nil
  elseif ticket.state == 'running' then
    write(TOKEN, ticket, now + LEASE)
    return leader(ticket)
  elseif ticket.state ~= 'parked' then
    return {'ENDED', ticket.reason}
  elseif may_start(TOKEN) then
    start(TOKEN, ticket, FLOOR)
    return leader(ticket)
  end
  ticket.offered = nil
  write(TOKEN, ticket, now + LEASE)
  return queued(TOKEN)
end
