-- For the option --script of prometheus-redis-exporter: each number of INFO rl becomes a metric
-- redis_script_values{key="rl_..."}.
local values = {}
for name, value in redis.call('INFO', 'rl'):gmatch('(rl_[%w_]+):(%d+)\r') do
  values[#values + 1] = name
  values[#values + 1] = value
end
return values
