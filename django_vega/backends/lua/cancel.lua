-- CANCEL: end flights and parked tickets as cancelled, wherever they run.
--
-- Arguments: 1 token of this request, 2 reason for flights, 3 reason for parked tickets,
--            4... tokens; none: all of the key
-- Returns:   {token, process, generation or 0} of each that was cancelled
-- Guarantees: the queue is voided before any flight ends, so no parked call starts. Followers get the
--            cancellation as outcome; holders learn by a hint and their next RENEW. The same request
--            again gets the same reply and cancels nothing.

sweep()

local ticket = read(ARGV[1])
if ticket then
  return finish(ticket.reply)
end

local tokens = {unpack(ARGV, 4)}
if #tokens == 0 then
  for _, key in ipairs({QUEUE, FLIGHTS}) do
    for _, token in ipairs(redis.call('ZRANGE', key, 0, -1)) do
      tokens[#tokens + 1] = token
    end
  end
end
local cancelled = {}
for _, state in ipairs({'parked', 'running'}) do
  for _, token in ipairs(tokens) do
    local found = read(token)
    if found and found.state == state then
      cancelled[#cancelled + 1] = cancel(token, state == 'parked' and ARGV[3] or ARGV[2])
    end
  end
end
remember(ARGV[1], cancelled)
return finish(cancelled)
