-- Gives back what take.lua took from one bucket for a request that another bucket denied: bucket::refund of
-- src/bucket.rs, in one step on the server. For Redis Cluster, where one script cannot see all buckets.
--
-- KEYS   the bucket's key.
-- ARGV   as for take.lua: [1] the time in microseconds or ''; then max_tokens, refill_rate, cost (what is given back),
--        time to live.
-- Reply  '1' when given back, '0' when there is no such bucket: it is full, and is not created.
-- Clock  as for take.lua: read once; a clock before last_refill adds nothing, and last_refill is never moved back.
--
-- Never more than max_tokens. Same operations in the same order as bucket::refund: change both or neither.
local KEYS, ARGV, call, tonumber, format, floor = KEYS, ARGV, redis.call, tonumber, string.format, math.floor
local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local stored = call('HMGET', KEYS[1], 'tokens', 'last_refill')
local tokens, last = tonumber(stored[1]), tonumber(stored[2])
-- What is missing or damaged reads as a full bucket, and stays as it is.
if not (tokens and last and tokens - tokens == 0 and last - last == 0) then
  return '0'
end
local elapsed, max, stamp = now - floor(last * 1000000 + 0.5), tonumber(ARGV[2]), stored[2]
if elapsed >= 0 then
  stamp = format('%.6f', now / 1000000)
end
if elapsed > 0 then
  tokens = tokens + elapsed * ARGV[3] / 1000000
end
if tokens > max then
  tokens = max
end
tokens = tokens + ARGV[4]
if tokens > max then
  tokens = max
end
call('HSET', KEYS[1], 'tokens', format('%.17g', tokens), 'last_refill', stamp)
call('EXPIRE', KEYS[1], ARGV[5])
return '1'
