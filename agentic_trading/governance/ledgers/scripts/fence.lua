-- Stop reserving and sending until the log is booked. Calls in flight may end. Calls that ended in the last ARGV ms
-- count as ending now, because their records may not have reached the log.
local since, known = now_us - 1000 * ARGV[FIRST], redis.call('HGET', META, 'since')
if not closed then
  close(REBUILDING, since)
elseif not known or since < tonumber(known) then
  redis.call('HSET', META, 'since', string.format('%.0f', since))
end
return answer('DONE')
