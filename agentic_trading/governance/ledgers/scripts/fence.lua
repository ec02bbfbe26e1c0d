-- Let nothing more be reserved or sent until the log is booked; what is under way may end. What has ended in the last so
-- many ms counts as if it ended now: its record may still be on its way to the log.
local since, known = now_us - 1000 * ARGV[FIRST], redis.call('HGET', META, 'since')
if not closed then
  close(REBUILDING, since)
elseif not known or since < tonumber(known) then
  redis.call('HSET', META, 'since', string.format('%.0f', since))
end
return answer('DONE')
