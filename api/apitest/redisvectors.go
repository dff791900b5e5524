package apitest

import "time"

const ms = time.Millisecond

const redisRules = `version: 1
rules:
  - {name: bucket, key: [user], consistency: exact, limits: [{limit: 5, per: 5s, algorithm: token-bucket}]}
  - {name: window, key: [user], consistency: exact, limits: [{limit: 2, per: 10s, algorithm: fixed-window}]}
  - {name: render, key: [user], limits: [{limit: 2, ttl: 10s, algorithm: concurrency}]}
`

// RedisVectors are what redis-cell 0.5.0, throttlecrab and Redis 8.10 reply, as
// far as it is served, and what the commands of rlnode's own do. docs/redis.md
// lists what differs on purpose.
var RedisVectors = []RedisVector{
	{
		Name: "CL.THROTTLE",
		Steps: []RedisStep{
			{0, "CL.THROTTLE k 4 5 18000 6", "[1 5 5 -1 0]"},
			{0, "CL.THROTTLE k 4 5 18000", "[0 5 4 -1 3600]"},
			{0, "cl.throttle k 4 5 18000 1", "[0 5 3 -1 7200]"},
			{0, "Cl.Throttle k 4 5 18000", "[0 5 2 -1 10800]"},
			{0, "CL.THROTTLE k 4 5 18000", "[0 5 1 -1 14400]"},
			{0, "CL.THROTTLE k 4 5 18000", "[0 5 0 -1 18000]"},
			{0, "CL.THROTTLE k 4 5 18000", "[1 5 0 3600 18000]"},
			{0, "CL.THROTTLE k 4 5 18000 0", "[0 5 0 -1 18000]"},
			{0, "CL.THROTTLE peek 4 5 18000 0", "[0 5 5 -1 0]"},
			{0, "CL.THROTTLE a 15 30 60", "[0 16 15 -1 2]"},
			{0, "CL.THROTTLE b 1000 60 60", "[0 1001 1000 -1 1]"},
			{0, "CL.THROTTLE d 1000 1000 60", "[0 1001 1000 -1 1]"},
			{0, "CL.THROTTLE e 2 3 25200", "[0 3 2 -1 8400]"},
			{0, "CL.THROTTLE e 2 3 25200", "[0 3 1 -1 16800]"},
			{0, "CL.THROTTLE e 2 3 25200", "[0 3 0 -1 25200]"},
			{0, "CL.THROTTLE e 2 3 25200", "[1 3 0 8400 25200]"},
			{0, "CL.THROTTLE none -1 5 5", "[1 0 0 -1 0]"},
			{0, "CL.THROTTLE none -1 5 5 0", "[0 0 0 -1 0]"},

			// Rates of more than 1,000 a second, which redis-cell does not limit, and ones
			// that are as high in sum.
			{0, "CL.THROTTLE rate 6000 6000 1 6001", "[0 6001 0 -1 1]"},
			{0, "CL.THROTTLE rate 6000 6000 1", "[1 6001 0 1 1]"},
			{0, "CL.THROTTLE sum 5999 6000 6000 6000", "[0 6000 0 -1 6000]"},
			{0, "CL.THROTTLE sum 5999 6000 6000", "[1 6000 0 1 6000]"},
			{0, "CL.THROTTLE year 1 1000000 31536000", "[0 2 1 -1 32]"},
			{0, "CL.THROTTLE year 1 1000000 31536000", "[0 2 0 -1 64]"},
			{0, "CL.THROTTLE year 1 1000000 31536000", "[1 2 0 32 64]"},
		},
	},
	{
		Name: "CL.THROTTLE in time",
		Steps: []RedisStep{
			{0, "CL.THROTTLE k 4 5 5 6", "[1 5 5 -1 0]"},
			{0, "CL.THROTTLE k 4 5 5", "[0 5 4 -1 1]"},
			{0, "CL.THROTTLE k 4 5 5", "[0 5 3 -1 2]"},
			{0, "CL.THROTTLE k 4 5 5", "[0 5 2 -1 3]"},
			{0, "CL.THROTTLE k 4 5 5", "[0 5 1 -1 4]"},
			{0, "CL.THROTTLE k 4 5 5", "[0 5 0 -1 5]"},
			{0, "CL.THROTTLE k 4 5 5", "[1 5 0 1 5]"},
			{3000 * ms, "CL.THROTTLE k 4 5 5", "[0 5 2 -1 3]"},
			{3100 * ms, "CL.THROTTLE k 4 5 5", "[0 5 1 -1 4]"},
			{4000 * ms, "CL.THROTTLE k 4 5 5", "[0 5 1 -1 4]"},
			{8000 * ms, "CL.THROTTLE k 4 5 5", "[0 5 4 -1 1]"},
			{9500 * ms, "CL.THROTTLE k 4 5 5", "[0 5 4 -1 1]"},
			{9500 * ms, "CL.THROTTLE k 4 5 5 0", "[0 5 4 -1 1]"},
			{9500 * ms, "CL.THROTTLE k 4 5 5 2", "[0 5 2 -1 3]"},
			{9500 * ms, "CL.THROTTLE k 4 5 5 5", "[1 5 2 3 3]"},

			{10 * time.Second, "CL.THROTTLE one 0 1 2", "[0 1 0 -1 2]"},
			{10 * time.Second, "CL.THROTTLE one 0 1 2", "[1 1 0 2 2]"},
			{11500 * ms, "CL.THROTTLE one 0 1 2", "[1 1 0 1 1]"},
			{12 * time.Second, "CL.THROTTLE one 0 1 2", "[0 1 0 -1 2]"},

			{13 * time.Second, "CL.THROTTLE seven 2 3 7", "[0 3 2 -1 3]"},
			{13 * time.Second, "CL.THROTTLE seven 2 3 7", "[0 3 1 -1 5]"},
			{13 * time.Second, "CL.THROTTLE seven 2 3 7", "[0 3 0 -1 7]"},
			{13 * time.Second, "CL.THROTTLE seven 2 3 7", "[1 3 0 3 7]"},

			{14 * time.Second, "CL.THROTTLE minute 15 30 60", "[0 16 15 -1 2]"},
			// A key has one counter in each namespace: one is used.
			{14 * time.Second, "CL.THROTTLE minute 1000 1000 60", "[0 1001 999 -1 1]"},
			{14 * time.Second, "CL.THROTTLE many 1000 1000 60", "[0 1001 1000 -1 1]"},
			{14 * time.Second, "CL.THROTTLE many 1000 1000 60", "[0 1001 999 -1 1]"},
			{14 * time.Second, "CL.THROTTLE many 1000 1000 60", "[0 1001 998 -1 1]"},
			{14*time.Second + 180*ms, "CL.THROTTLE many 1000 1000 60", "[0 1001 1000 -1 1]"},
		},
	},
	{
		Name: "CL.THROTTLE over days",
		Steps: []RedisStep{
			{time.Minute, "CL.THROTTLE day 1 2 86400", "[0 2 1 -1 43200]"},
			{time.Minute, "CL.THROTTLE day 1 2 86400", "[0 2 0 -1 86400]"},
			{12 * time.Hour, "CL.THROTTLE day 1 2 86400", "[1 2 0 60 43260]"},
			{12*time.Hour + time.Minute, "CL.THROTTLE day 1 2 86400", "[0 2 0 -1 86400]"},
			{37*time.Hour + time.Minute, "CL.THROTTLE day 1 2 86400 0", "[0 2 2 -1 0]"},

			{38 * time.Hour, "CL.THROTTLE year 0 1 31622400", "[0 1 0 -1 31622400]"},
			{38*time.Hour + 365*24*time.Hour, "CL.THROTTLE year 0 1 31622400", "[1 1 0 86400 86400]"},
			{38*time.Hour + 366*24*time.Hour, "CL.THROTTLE year 0 1 31622400", "[0 1 0 -1 31622400]"},
		},
	},
	{
		Name: "THROTTLE",
		Steps: []RedisStep{
			{0, "THROTTLE k 2 1 3600", "[1 2 1 3600 0]"},
			{0, "THROTTLE k 2 1 3600 1", "[1 2 0 7200 0]"},
			{0, "THROTTLE k 2 1 3600", "[0 2 0 7200 3600]"},
			{0, "THROTTLE k 2 1 3600 3", "[0 2 0 7200 -1]"},
			{0, "THROTTLE k 0 1 3600", "-ERR bad-value max_burst must be a whole number from 1 to 9007199254740990"},
			{0, "THROTTLE k x 1 3600", "-ERR invalid max_burst"},
			{0, "THROTTLE k 2 1", "-ERR wrong number of arguments for 'throttle' command"},
			{0, "THROTTLE k 2 1 3600 1 1", "-ERR wrong number of arguments for 'throttle' command"},
			// This has another namespace than CL.THROTTLE.
			{0, "CL.THROTTLE k 1 1 3600", "[0 2 1 -1 3600]"},
		},
	},
	// It follows the proposal for Valkey, which is CL.THROTTLE by another name: it
	// is the same bucket.
	{
		Name: "RL.THROTTLE",
		Steps: []RedisStep{
			{0, "RL.THROTTLE k 1 1 3600", "[0 2 1 -1 3600]"},
			{0, "CL.THROTTLE k 1 1 3600", "[0 2 0 -1 7200]"},
			{0, "RL.THROTTLE k 1 1 3600", "[1 2 0 3600 7200]"},
			{0, "RL.THROTTLE k x 1 3600", "-ERR value is not an integer or out of range"},
			{0, "RL.THROTTLE k 1 1", "-ERR wrong number of arguments for 'rl.throttle' command"},
			{0, "RL.THROTTLE k 1 1 1 1 1", "-ERR wrong number of arguments for 'rl.throttle' command"},
		},
	},
	{
		Name: "INCREX",
		Steps: []RedisStep{
			{0, "INCREX k BYINT 1 UBOUND 100 EX 3600 ENX", "[1 1]"},
			{0, "increx k byint 0 ubound 100 ex 3600 enx", "[1 0]"},
			{0, "INCREX none BYINT 0 UBOUND 100 EX 3600 ENX", "[0 0]"},
			{0, "INCREX k ENX EX 10 UBOUND 100", "[2 1]"},
			{0, "TTL k", "3600"}, // ENX
			{0, "INCREX k BYINT 200 UBOUND 100 PX 3600000 ENX", "[2 0]"},
			{0, "INCREX k BYINT 200 UBOUND 100 SATURATE EX 3600 ENX", "[100 98]"},
			{0, "INCREX k UBOUND 100 SATURATE EX 3600 ENX", "[100 0]"},
			{0, "INCREX k UBOUND 50 EX 3600 ENX", "[100 0]"},
			// A call takes nothing from what others have counted.
			{0, "INCREX k UBOUND 50 SATURATE EX 3600 ENX", "[100 0]"},
			{0, "INCREX k BYINT -1 UBOUND 100 EX 3600 ENX", "[99 -1]"},
			{0, "INCREX k BYINT -1 UBOUND 50 EX 3600 ENX", "[99 0]"},
			{0, "INCREX k BYINT -49 UBOUND 50 EX 3600 ENX", "[50 -49]"},
			{0, "INCREX k BYINT -9 UBOUND 50 SATURATE EX 3600 ENX", "[41 -9]"},
			{0, "INCREX m BYINT 10 UBOUND 5 EX 60 ENX", "[0 0]"},
			{0, "EXISTS m", "0"},
			{0, "INCREX m BYINT 10 UBOUND 0 EX 60 ENX", "[0 0]"},
			{0, "INCREX m BYINT 10 UBOUND -5 EX 60 ENX", "[0 0]"},
			{0, "INCREX m BYINT 10 UBOUND 5 SATURATE EX 60 ENX", "[5 5]"},
			// A limiter counts nothing below 0.
			{0, "INCREX m BYINT -6 UBOUND 5 EX 60 ENX", "[5 0]"},
			{0, "INCREX m BYINT -6 UBOUND 5 SATURATE EX 60 ENX", "[0 -5]"},
			{0, "INCREX m BYINT -6 UBOUND 5 SATURATE EX 60 ENX", "[0 0]"},
			{0, "EXISTS m", "0"},
			{0, "INCREX m BYINT 3 UBOUND 5 EX 60 ENX", "[3 3]"},
			{0, "INCREX m BYINT -3 UBOUND 0 EX 60 ENX", "[0 -3]"},
		},
	},
	{
		Name: "INCREX in time",
		Steps: []RedisStep{
			{300 * ms, "INCREX k UBOUND 2 EX 60 ENX", "[1 1]"},
			{1300 * ms, "TTL k", "59"},
			{1300 * ms, "PTTL k", "59000"},
			{30 * time.Second, "INCREX k UBOUND 2 EX 60 ENX", "[2 1]"},
			{30 * time.Second, "INCREX k UBOUND 2 EX 60 ENX", "[2 0]"},
			{60299 * ms, "INCREX k UBOUND 2 EX 60 ENX", "[2 0]"},
			{60299 * ms, "PTTL k", "1"},
			{60300 * ms, "TTL k", "-2"},
			{60300 * ms, "INCREX k UBOUND 2 EX 60 ENX", "[1 1]"},

			{61 * time.Second, "INCREX short UBOUND 1 PX 10 ENX", "[1 1]"},
			{61009 * ms, "INCREX short UBOUND 1 PX 10 ENX", "[1 0]"},
			{61010 * ms, "INCREX short UBOUND 1 PX 10 ENX", "[1 1]"},

			{2 * time.Minute, "INCREX day UBOUND 5 EX 86400 ENX", "[1 1]"},
			{24*time.Hour + 119*time.Second, "INCREX day UBOUND 5 BYINT 4 EX 86400 ENX", "[5 4]"},
			{24*time.Hour + 2*time.Minute, "INCREX day UBOUND 5 EX 86400 ENX", "[1 1]"},
		},
	},
	{
		Name: "keys",
		Steps: []RedisStep{
			{0, "TTL k", "-2"}, {0, "PTTL k", "-2"}, {0, "EXISTS k", "0"}, {0, "TYPE k", "+none"}, {0, "DEL k", "0"},
			{0, "CL.THROTTLE k 4 5 18000", "[0 5 4 -1 3600]"},
			{0, "TTL k", "3600"}, {0, "EXISTS k k other", "2"}, {0, "TYPE k", "+string"},
			{0, "INCREX k UBOUND 9 EX 7200 ENX", "[1 1]"},
			{0, "TTL k", "7200"}, // the last to end
			{0, "THROTTLE k 5 1 7200", "[1 5 4 7200 0]"},
			{0, "THROTTLE k 5 1 7200", "[1 5 3 14400 0]"},
			{0, "TTL k", "14400"}, {0, "EXISTS k", "1"},
			{0, "THROTTLE other 5 1 7200", "[1 5 4 7200 0]"},
			{0, "DEL k none k", "1"}, // a name in all three
			{0, "EXISTS k other", "1"}, {0, "TTL k", "-2"},
			{0, "CL.THROTTLE k 4 5 18000", "[0 5 4 -1 3600]"},
			{0, "UNLINK k other", "2"},
			{0, "TTL", "-ERR wrong number of arguments for 'ttl' command"},
			{0, "TTL a b", "-ERR wrong number of arguments for 'ttl' command"},
			{0, "DEL", "-ERR wrong number of arguments for 'del' command"},
		},
	},
	// A key has one counter. A call with another period is judged by its own
	// amounts in the first one's, and TTL stays true.
	{
		Name: "keys keep their period",
		Steps: []RedisStep{
			{0, "CL.THROTTLE k 4 5 18000", "[0 5 4 -1 3600]"},
			{0, "CL.THROTTLE k 4 5 36000", "[0 5 3 -1 7200]"},
			{0, "CL.THROTTLE k 4 10 5", "[0 5 2 -1 5400]"},
			{0, "TTL k", "5400"},
			{0, "CL.THROTTLE k 2 5 18000", "[1 3 0 3600 10800]"},
			{0, "TTL k", "10800"},
			{0, "INCREX k UBOUND 9 EX 7200 ENX", "[1 1]"},
			{0, "INCREX k UBOUND 9 EX 36000 ENX", "[2 1]"},
			{0, "INCREX k UBOUND 2 EX 1 ENX", "[2 0]"},
		},
	},
	{
		Name: "THROTTLE in time",
		Steps: []RedisStep{
			{0, "THROTTLE k 2 2 10", "[1 2 1 5 0]"},
			{0, "THROTTLE k 2 2 10", "[1 2 0 10 0]"},
			{0, "THROTTLE k 2 2 10", "[0 2 0 10 5]"},
			{4000 * ms, "THROTTLE k 2 2 10", "[0 2 0 6 1]"},
			{4999 * ms, "THROTTLE k 2 2 10", "[0 2 0 6 1]"},
			{5000 * ms, "THROTTLE k 2 2 10", "[1 2 0 10 0]"},
			{15 * time.Second, "THROTTLE k 2 2 10 0", "[1 2 2 0 0]"},
		},
	},
	{
		Name: "keys end",
		Steps: []RedisStep{
			{0, "CL.THROTTLE k 4 5 5 3", "[0 5 2 -1 3]"},
			{0, "THROTTLE k 5 5 5 4", "[1 5 1 4 0]"},
			{0, "INCREX k UBOUND 9 PX 2500 ENX", "[1 1]"},
			{0, "TTL k", "4"}, {0, "PTTL k", "4000"}, // the last to end
			{2500 * ms, "INCREX k BYINT 0 UBOUND 9 PX 2500 ENX", "[0 0]"},
			{2500 * ms, "TTL k", "2"}, {2501 * ms, "TTL k", "1"}, {2501 * ms, "PTTL k", "1499"},
			{3000 * ms, "CL.THROTTLE k 4 5 5 0", "[0 5 5 -1 0]"},
			{3999 * ms, "EXISTS k", "1"}, {3999 * ms, "TYPE k", "+string"}, {3999 * ms, "PTTL k", "1"},
			{4000 * ms, "EXISTS k", "0"}, {4000 * ms, "TYPE k", "+none"},
			{4000 * ms, "TTL k", "-2"}, {4000 * ms, "PTTL k", "-2"}, {4000 * ms, "DEL k", "0"},

			// What has ended is forgotten: the next call may bring another window.
			{4000 * ms, "INCREX k UBOUND 1 EX 20 ENX", "[1 1]"},
			{14 * time.Second, "PTTL k", "10000"},
			{14 * time.Second, "DEL k", "1"},
			{14 * time.Second, "INCREX k UBOUND 1 EX 20 ENX", "[1 1]"},
			{33999 * ms, "INCREX k UBOUND 1 EX 20 ENX", "[1 0]"},
			{34 * time.Second, "INCREX k UBOUND 1 EX 20 ENX", "[1 1]"},
		},
	},
	{
		Name:  "RL.CHECK, RL.RESERVE and RL.USAGE in time",
		Rules: redisRules,
		Steps: []RedisStep{
			{0, "RL.CHECK bucket u COST 5",
				`["allowed" 1 "rule" "bucket" "limit" 5 "used" 5 "remaining" 0 "unit" "requests" "window_ms" 5000 "reset_after_ms" 5000 "retry_after_ms" 0 "more_after_ms" 1000 …`},
			{0, "RL.CHECK bucket u",
				`["allowed" 0 "code" "rate-limited" "detail" "Limit \"bucket\" of rule \"bucket\" (5 requests per 5s) is used up; retry in 1 s." "rule" "bucket" "limit" 5 "used" 5 "remaining" 0 "unit" "requests" "window_ms" 5000 "reset_after_ms" 5000 "retry_after_ms" 1000 "more_after_ms" 1000 …`},
			{999 * ms, "RL.CHECK bucket u PEEK",
				`["allowed" 0 "code" "rate-limited" "detail" "Limit \"bucket\" of rule \"bucket\" (5 requests per 5s) is used up; retry in 0.001 s." "rule" "bucket" "limit" 5 "used" 5 "remaining" 0 "unit" "requests" "window_ms" 5000 "reset_after_ms" 4001 "retry_after_ms" 1 "more_after_ms" 1 …`},
			{1000 * ms, "RL.CHECK bucket u", `["allowed" 1 "rule" "bucket" "limit" 5 "used" 5 "remaining" 0 …`},
			{3000 * ms, "RL.USAGE bucket u",
				`["rule" "bucket" "key" ["u"] "limits" [["name" "bucket" "algorithm" "token-bucket" "unit" "requests" "limit" 5 "window_ms" 5000 "used" 3 "remaining" 2 "leased" 0 "share" 5 "reset_after_ms" 3000 "more_after_ms" 1000 …`},

			{5000 * ms, "RL.RESERVE bucket u COST 4 TTL 2000",
				`["allowed" 1 "rule" "bucket" "limit" 5 "used" 5 "remaining" 0 …`},
			{6000 * ms, "RL.SETTLE $reservation COST 1",
				`["reservation" "$reservation" "settled" 1 "costs" ["requests" 1] "remaining" 4 "repeated" 0]`},
			{7000 * ms, "RL.SETTLE $reservation COST 1",
				`["reservation" "$reservation" "settled" 1 "costs" ["requests" 1] "remaining" 4 "repeated" 1]`},
			{10 * time.Second, "RL.RESERVE bucket u COST 5 TTL 2000",
				`["allowed" 1 "rule" "bucket" "limit" 5 "used" 5 "remaining" 0 …`},
			{12 * time.Second, "RL.SETTLE $reservation COST 1",
				`["reservation" "$reservation" "settled" 1 "costs" ["requests" 1] "remaining" 5 "expired" 1 "repeated" 0]`},

			{22 * time.Second, "RL.CHECK window u COST 2",
				`["allowed" 1 "rule" "window" "limit" 2 "used" 2 "remaining" 0 "unit" "requests" "window_ms" 10000 "reset_after_ms" 8000 "retry_after_ms" 0 "more_after_ms" 8000 …`},
			{22 * time.Second, "RL.CHECK window u",
				`["allowed" 0 "code" "rate-limited" "detail" "Limit \"window\" of rule \"window\" (2 requests per 10s) is used up; retry in 8 s." "rule" "window" "limit" 2 "used" 2 "remaining" 0 "unit" "requests" "window_ms" 10000 "reset_after_ms" 8000 "retry_after_ms" 8000 …`},
			{29999 * ms, "RL.CHECK window u",
				`["allowed" 0 "code" "rate-limited" "detail" "Limit \"window\" of rule \"window\" (2 requests per 10s) is used up; retry in 0.001 s." "rule" "window" "limit" 2 "used" 2 "remaining" 0 "unit" "requests" "window_ms" 10000 "reset_after_ms" 1 "retry_after_ms" 1 …`},
			{30 * time.Second, "RL.CHECK window u COST 2",
				`["allowed" 1 "rule" "window" "limit" 2 "used" 2 "remaining" 0 "unit" "requests" "window_ms" 10000 "reset_after_ms" 10000 …`},
			{31 * time.Second, "RL.RESET window u",
				`["rule" "window" "key" ["u"] "limits" [["name" "window" "algorithm" "fixed-window" "unit" "requests" "limit" 2 "window_ms" 10000 "used" 0 "remaining" 2 "leased" 0 "share" 2 "reset_after_ms" 0 …`},
			{31 * time.Second, "RL.CHECK window u",
				`["allowed" 1 "rule" "window" "limit" 2 "used" 1 "remaining" 1 "unit" "requests" "window_ms" 10000 "reset_after_ms" 9000 …`},
		},
	},
	{
		Name:  "RL.ACQUIRE in time",
		Rules: redisRules,
		Steps: []RedisStep{
			{0, "RL.ACQUIRE render u TTL 5000",
				`["allowed" 1 "rule" "render" "limit" 2 "used" 1 "remaining" 1 "unit" "requests" "ttl_ms" 10000 "reset_after_ms" 5000 "retry_after_ms" 0 …`},
			{0, "RL.ACQUIRE render u",
				`["allowed" 1 "rule" "render" "limit" 2 "used" 2 "remaining" 0 "unit" "requests" "ttl_ms" 10000 "reset_after_ms" 10000 "retry_after_ms" 0 "more_after_ms" 5000 …`},
			{1000 * ms, "RL.ACQUIRE render u",
				`["allowed" 0 "code" "rate-limited" "detail" "Limit \"render\" of rule \"render\" (2 requests at once) is used up; retry in 4 s." "rule" "render" "limit" 2 "used" 2 "remaining" 0 "unit" "requests" "ttl_ms" 10000 "reset_after_ms" 9000 "retry_after_ms" 4000 "more_after_ms" 4000 …`},
			// Callers count by clocks of their own, which may be slow.
			{1000 * ms, "RL.RENEW $slot TTL 3000", `["expires_ms" 2996]`},
			{3999 * ms, "RL.ACQUIRE render u",
				`["allowed" 0 "code" "rate-limited" "detail" "Limit \"render\" of rule \"render\" (2 requests at once) is used up; retry in 0.001 s." "rule" "render" "limit" 2 "used" 2 "remaining" 0 "unit" "requests" "ttl_ms" 10000 "reset_after_ms" 1001 "retry_after_ms" 1 "more_after_ms" 1 …`},
			{4000 * ms, "RL.RENEW $slot TTL 3000", `-ERR unknown-slot slot: the slot has ended or was released`},
			{4000 * ms, "RL.ACQUIRE render u",
				`["allowed" 1 "rule" "render" "limit" 2 "used" 2 "remaining" 0 "unit" "requests" "ttl_ms" 10000 "reset_after_ms" 10000 "retry_after_ms" 0 "more_after_ms" 1000 …`},
			{4999 * ms, "RL.ACQUIRE render u", `["allowed" 0 …`},
			{5000 * ms, "RL.ACQUIRE render u",
				`["allowed" 1 "rule" "render" "limit" 2 "used" 2 "remaining" 0 "unit" "requests" "ttl_ms" 10000 "reset_after_ms" 10000 "retry_after_ms" 0 "more_after_ms" 9000 …`},
			{6000 * ms, "RL.RELEASE $slot", `["released" 1]`},
			{6000 * ms, "RL.RELEASE $slot", `["released" 0]`},
			{6000 * ms, "RL.USAGE render u",
				`["rule" "render" "key" ["u"] "limits" [["name" "render" "algorithm" "concurrency" "unit" "requests" "limit" 2 "ttl_ms" 10000 "used" 1 "remaining" 1 …`},
			{14 * time.Second, "RL.USAGE render u",
				`["rule" "render" "key" ["u"] "limits" [["name" "render" "algorithm" "concurrency" "unit" "requests" "limit" 2 "ttl_ms" 10000 "used" 0 "remaining" 2 …`},
		},
	},
}
