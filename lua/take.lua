-- Takes a cost from every bucket, or nothing from any: bucket::take of src/bucket.rs, in one step on the server.
--
-- KEYS   the buckets' keys, each once.
-- ARGV   [1] the time in microseconds since the Unix epoch, or '' for this server's TIME; then for each key, in
--        the order of KEYS: max_tokens, refill_rate in tokens per second, cost, time to live in whole seconds >= 1.
-- Reply  one string: '1' when taken or '0' when not, then for each key a space and its tokens: after the cost when
--        taken, as found when not. '%.17g' holds every double exactly.
-- Clock  read once. A clock before last_refill adds nothing, and last_refill is never moved back.
-- Stored a hash: tokens, last_refill in seconds with six decimals (exact to the microsecond until the year 2106).
--        What is missing, not a number or not finite reads as a full bucket. Written only when all is taken.
--
-- Same operations in the same order as State::refilled: change both or neither.
local KEYS, ARGV, call, tonumber, format, floor = KEYS, ARGV, redis.call, tonumber, string.format, math.floor
local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local stamp = format('%.6f', now / 1000000)

local count, taken = #KEYS, true
-- Made with room for a user, a key and an address, so that they need not grow.
local levels, stamps = {0, 0, 0}, {0, 0, 0}
for i = 1, count do
  local stored = call('HMGET', KEYS[i], 'tokens', 'last_refill')
  local tokens, last = tonumber(stored[1]), tonumber(stored[2])
  local max = tonumber(ARGV[4 * i - 2])
  stamps[i] = stamp
  if not (tokens and last and tokens - tokens == 0 and last - last == 0) then
    tokens = max
  else
    local elapsed = now - floor(last * 1000000 + 0.5)
    if elapsed > 0 then
      tokens = tokens + elapsed * ARGV[4 * i - 1] / 1000000
    else
      stamps[i] = stored[2]
    end
    if tokens > max then
      tokens = max
    end
  end
  levels[i] = tokens
  -- Not tokens < cost: that would be false, and admit, for NaN.
  if not (tokens >= tonumber(ARGV[4 * i])) then
    taken = false
  end
end

local reply = taken and '1' or '0'
for i = 1, count do
  local level = levels[i]
  if taken then
    level = format('%.17g', level - ARGV[4 * i])
    call('HSET', KEYS[i], 'tokens', level, 'last_refill', stamps[i])
    call('EXPIRE', KEYS[i], ARGV[4 * i + 1])
  else
    level = format('%.17g', level)
  end
  reply = reply .. ' ' .. level
end
return reply
