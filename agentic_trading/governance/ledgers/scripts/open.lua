-- Open the ledger, because the log is booked. If another rebuild has begun since, it stays closed.
if epoch == tonumber(ARGV[FIRST]) then
  step()
  redis.call('HDEL', META, 'closed', 'since', 'unbooked')
  closed = false
  wake_all()
end
return answer('DONE')
