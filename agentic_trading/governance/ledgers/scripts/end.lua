-- Settle a call, release it, or put it in doubt. Repeating has no effect.
local id, wanted, keep = ARGV[FIRST], ARGV[FIRST + 1], ARGV[FIRST + 2]
local charged = {ARGV[FIRST + 3], ARGV[FIRST + 4], ARGV[FIRST + 5]}
local key = KEYS[FIRST_CALL]
local ALLOWED = {
  settled = {dispatched = true, in_doubt = true, settled = true},
  in_doubt = {dispatched = true, in_doubt = true, settled = true},
  released = {reserved = true, released = true},
}

local call = find(key)
if not call then
  return answer('UNKNOWN')
elseif not ALLOWED[wanted][call.state] then
  return answer('STATE', call.state)
end
local changes = call.state ~= wanted and call.state ~= 'settled'
if changes then
  step()
  if wanted == 'in_doubt' then
    charged = call.amount
  end
  finish(key, id, call, wanted, charged, keep)
end
return answer('DONE', changes and 1 or 0, call.state, call.late,
  call.charged[1], call.charged[2], call.charged[3], call.amount[1], call.amount[2], call.amount[3])
