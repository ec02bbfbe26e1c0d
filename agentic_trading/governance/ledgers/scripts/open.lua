-- Let calls run again: the log is booked. Another rebuild that began meanwhile stays closed.
if epoch == tonumber(ARGV[FIRST]) then
  step()
  redis.call('HDEL', META, 'closed', 'since', 'unbooked')
  closed = false
  wake_all()
end
return answer('DONE')
