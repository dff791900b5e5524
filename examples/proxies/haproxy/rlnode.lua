-- HAProxy asks rlnode about a request: http-request lua.rlnode PROFILE. For HAProxy 2.6 or later with Lua, which
-- Debian's package has; it needs no libraries.
--
-- Before, txn.endpoint is the path, as the rules are to see it. Afterwards txn.rlnode_status is rlnode's answer: 200 to let
-- the request pass, 0 when there was none in time or only a 5xx, and everything else to refuse it: 429, 403 where the deny
-- list or the default has refused, or 400 where rlnode does not take the question. txn.rlnode_policy, _left, _limit,
-- _remaining, _reset, _retry and _body are what goes with 200, 429 and 403.

-- Where haproxy.cfg listens for this file: it chooses among the nodes.
local address = "http://127.0.0.1:9902"
-- Milliseconds. haproxy.cfg gives up before.
local patience = 400
-- Bytes of a value, as of rlnode's own.
local most = 1024

local variables = {
    ["ratelimit-policy"]      = "txn.rlnode_policy",
    ["ratelimit"]             = "txn.rlnode_left",
    ["x-ratelimit-limit"]     = "txn.rlnode_limit",
    ["x-ratelimit-remaining"] = "txn.rlnode_remaining",
    ["x-ratelimit-reset"]     = "txn.rlnode_reset",
    ["retry-after"]           = "txn.rlnode_retry",
}

-- What of the caller's may stand in a header: the rest is percent-encoded, and what is too long is cut. What could not be
-- sent would look as if rlnode were away.
local function sendable(text)
    return (text:sub(1, most):gsub("[^\33-\126]", function(c) return string.format("%%%02X", c:byte()) end))
end

local function ask(txn, profile)
    -- Until there is an answer the request is one to refuse, also where something below fails.
    txn:set_var("txn.rlnode_status", 400)
    -- Only what stands here is sent: nothing that the caller could have forged. The key is the caller's own.
    local headers = {
        ["x-forwarded-for"]    = { txn.f:src() },
        ["x-forwarded-method"] = { sendable(txn.sf:method()) },
        ["x-forwarded-uri"]    = { sendable(txn:get_var("txn.endpoint") or txn.sf:path()) },
    }
    local key = txn.sf:req_fhdr("x-api-key", 1)
    if #key > most or key:find("[^\32-\126]") then
        return -- no key that was given out
    elseif key ~= "" then
        headers["x-api-key"] = { key }
    end
    local answer = core.httpclient():get{
        url = address .. "/v1/auth/" .. profile, headers = headers, timeout = patience,
    }
    local status = answer and answer.status or 0
    if status == 0 or status >= 500 then
        txn:set_var("txn.rlnode_status", 0)
        return
    elseif status == 403 and not (answer.body or ""):find('"code"%s*:%s*"denied"') then
        return -- no decision: rlnode does not let this proxy ask
    elseif status ~= 200 and status ~= 429 and status ~= 403 then
        return
    end
    for header, variable in pairs(variables) do
        local value = answer.headers[header]
        if value then
            txn:set_var(variable, value[0])
        end
    end
    txn:set_var("txn.rlnode_body", answer.body or "")
    txn:set_var("txn.rlnode_status", status)
end

core.register_action("rlnode", { "http-req" }, ask, 1)
