-- Takes a cost from every bucket, or nothing from any: bucket::take of src/bucket.rs, in one step on the server.
--
-- KEYS   the buckets' keys, each once.
-- ARGV   [1] the time in microseconds since the Unix epoch, or '' for this server's TIME; then for each key, in
--        the order of KEYS: max_tokens, refill_rate in tokens per second, cost, time to live in whole seconds >= 1.
-- Reply  one string: '1' when taken or '0' when not, then for each key ' tokens elapsed': its tokens at its last
--        write, which is this one when taken, and the microseconds since, negative when the clock stands before it.
--        '%.17g' holds every double exactly.
-- Clock  read once. A clock before last_refill adds nothing, and last_refill is never moved back.
-- Stored a hash: tokens, last_refill in seconds with six decimals (exact to the microsecond until the year 2106).
--        What is missing, not a number or not finite reads as a full bucket. Written only when all is taken.
--
-- Same operations in the same order as bucket::take: change both or neither.
local KEYS, ARGV, call, tonumber, format, floor = KEYS, ARGV, redis.call, tonumber, string.format, math.floor
local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local stamp = format('%.6f', now / 1000000)

local count, taken = #KEYS, true
-- Made with room for a user, a key and an address, so that they need not grow.
local found, ages, levels, stamps = {0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}
for i = 1, count do
  local stored = call('HMGET', KEYS[i], 'tokens', 'last_refill')
  local tokens, last, elapsed = tonumber(stored[1]), tonumber(stored[2]), 0
  local max = tonumber(ARGV[4 * i - 2])
  if not (tokens and last and tokens - tokens == 0 and last - last == 0) then
    tokens = max
  else
    elapsed = now - floor(last * 1000000 + 0.5)
  end
  found[i], ages[i] = tokens, elapsed
  stamps[i] = elapsed < 0 and stored[2] or stamp
  if elapsed > 0 then
    tokens = tokens + elapsed * ARGV[4 * i - 1] / 1000000
  end
  if tokens > max then
    tokens = max
  end
  levels[i] = tokens
  -- Not tokens < cost: that would be false, and admit, for NaN.
  if not (tokens >= tonumber(ARGV[4 * i])) then
    taken = false
  end
end

if not taken then
  local reply = '0'
  for i = 1, count do
    reply = reply .. format(' %.17g %.0f', found[i], ages[i])
  end
  return reply
end

local reply = '1'
for i = 1, count do
  local level = format('%.17g', levels[i] - ARGV[4 * i])
  call('HSET', KEYS[i], 'tokens', level, 'last_refill', stamps[i])
  call('EXPIRE', KEYS[i], ARGV[4 * i + 1])
  reply = reply .. ' ' .. level .. (ages[i] < 0 and format(' %.0f', ages[i]) or ' 0')
end
return reply
