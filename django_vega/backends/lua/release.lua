-- RELEASE: an operator frees a stuck key: all its holders are dropped, running or stopping.
--
-- Arguments: 1 token of this request
-- Returns:   the newest generation of the key, 0 when none is known: move the fence there
-- Guarantees: no outcome is stored, so followers elect a new leader, or the queue goes on. The old
--            holders' RENEW and SETTLE say LOST released. The same request again drops nothing.

sweep()

local ticket = read(ARGV[1])
if ticket then
  return finish(ticket.reply)
end

local reply = newest()
for _, key in ipairs({FLIGHTS, STOPPING}) do
  for _, token in ipairs(redis.call('ZRANGE', key, 0, -1)) do
    hints[read(token).process] = true
    spend(token, 'released')
  end
end
if changed then
  wake()
end
remember(ARGV[1], reply)
return finish(reply)
