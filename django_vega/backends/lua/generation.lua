-- GENERATION: a generation for a call that is not coordinated.
--
-- Arguments: 1 token, 2 floor
-- Returns:   max(newest + 1, now in µs, floor + 1)
-- Guarantees: above every earlier one of the key; after a flush above all whose time has passed, and
--            above floor. The same token gets the same one again.

sweep()

local ticket = read(ARGV[1])
if ticket then
  return finish(ticket.reply)
end
local reply = issue(tonumber(ARGV[2]))
remember(ARGV[1], reply)
return finish(reply)
