-- HAProxy asks rlnode about a request: http-request lua.rlnode PROFILE. For HAProxy 2.6 or later with Lua, which
-- Debian's package has; it needs no libraries.
--
-- Before, txn.endpoint is the path, as the rules are to see it. Afterwards txn.rlnode_status is rlnode's answer: 200, 429, or 0 when there was none in time. txn.rlnode_policy,
-- _left, _limit, _remaining, _reset, _retry and _body are what goes with it.

-- Where haproxy.cfg listens for this file: it chooses among the nodes.
local address = "http://127.0.0.1:9902"
-- Milliseconds. haproxy.cfg gives up before.
local patience = 400

local variables = {
    ["ratelimit-policy"]      = "txn.rlnode_policy",
    ["ratelimit"]             = "txn.rlnode_left",
    ["x-ratelimit-limit"]     = "txn.rlnode_limit",
    ["x-ratelimit-remaining"] = "txn.rlnode_remaining",
    ["x-ratelimit-reset"]     = "txn.rlnode_reset",
    ["retry-after"]           = "txn.rlnode_retry",
}

local function ask(txn, profile)
    txn:set_var("txn.rlnode_status", 0)
    -- Only what stands here is sent: nothing that the caller could have forged. The key is the caller's own.
    local headers = {
        ["x-forwarded-for"]    = { txn.f:src() },
        ["x-forwarded-method"] = { txn.f:method() },
        ["x-forwarded-uri"]    = { txn:get_var("txn.endpoint") or txn.f:path() },
    }
    local key = txn.sf:req_fhdr("x-api-key", 1)
    if key ~= "" then
        headers["x-api-key"] = { key }
    end
    local answer = core.httpclient():get{
        url = address .. "/v1/auth/" .. profile, headers = headers, timeout = patience,
    }
    if not answer or (answer.status ~= 200 and answer.status ~= 429) then
        return
    end
    for header, variable in pairs(variables) do
        local value = answer.headers[header]
        if value then
            txn:set_var(variable, value[0])
        end
    end
    txn:set_var("txn.rlnode_body", answer.body or "")
    txn:set_var("txn.rlnode_status", answer.status)
end

core.register_action("rlnode", { "http-req" }, ask, 1)
