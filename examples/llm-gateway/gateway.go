package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/rlnode/rlnode/client"
)

const (
	completions = "/v1/chat/completions"
	embeddings  = "/v1/embeddings"

	tokens   = "tokens"
	requests = "requests"

	maxRequest = 4 << 20  // bytes
	maxAnswer  = 16 << 20 // bytes of an answer that is not streamed
	maxEvent   = 1 << 20  // bytes of a line of a stream
	maxCalls   = 512      // in progress at once

	// callTimeout bounds a call well below ttl, because an expired reservation can't be settled.
	callTimeout = 9 * time.Minute
	ttl         = 10 * time.Minute
	readTimeout = 30 * time.Second // for reading a request's body
)

// gateway is the proxy.
type gateway struct {
	limiter  *client.Client
	upstream *url.URL
	http     *http.Client
	log      *slog.Logger
	address  func(*http.Request) string // of the caller; behind a proxy, use client.Address(1)
	slots    chan struct{}              // one for each call in progress
}

func newGateway(limiter *client.Client, upstream *url.URL, log *slog.Logger) *gateway {
	return &gateway{limiter: limiter, upstream: upstream, log: log, address: client.Address(0),
		slots: make(chan struct{}, maxCalls), http: &http.Client{
			Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64,
				IdleConnTimeout: time.Minute},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}}
}

// ServeHTTP forwards a call if the limits allow it.
func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// A slow sender or reader must not hold a place forever. An error only means
	// that the connection does not support deadlines.
	connection := http.NewResponseController(w)
	_ = connection.SetWriteDeadline(time.Now().Add(callTimeout))
	read := readers[r.URL.Path]
	if read == nil || r.Method != http.MethodPost {
		writeError(w, http.StatusNotFound,
			apiError{Message: "There are only POST " + completions + " and " + embeddings +
				" here.", Type: "invalid_request_error"})
		return
	}
	key, ok := apiKey(r.Header.Get("Authorization"))
	if !ok {
		writeError(w, http.StatusUnauthorized,
			apiError{Message: "Send an API key: Authorization: Bearer …",
				Type: "invalid_request_error", Code: "invalid_api_key"})
		return
	}
	select {
	case g.slots <- struct{}{}:
		defer func() { <-g.slots }()
	default:
		w.Header().Set("Retry-After", "1")
		writeError(w, http.StatusServiceUnavailable,
			apiError{Message: "Too many calls are in progress.", Type: "server_error"})
		return
	}
	_ = connection.SetReadDeadline(time.Now().Add(readTimeout))
	call, err := read(http.MaxBytesReader(w, r.Body, maxRequest))
	_ = connection.SetReadDeadline(time.Time{})
	if err != nil {
		writeError(w, http.StatusBadRequest, apiError{Message: err.Error(), Type: "invalid_request_error"})
		return
	}

	reserved, err := g.limiter.Reserve(r.Context(), client.Request{
		Attributes: map[string]string{"api_key": client.Fingerprint(key), "ip": g.address(r),
			"endpoint": call.endpoint},
		Costs:  map[string]int64{tokens: call.estimate()},
		Detail: true, // so that the headers can show both limits
	}, ttl)
	if err != nil {
		g.log.Warn("no node has decided", "allowed", reserved.Allowed, "error", err)
	}
	setHeaders(w.Header(), reserved.Limits)
	if !reserved.Allowed {
		refuse(w, &reserved.Decision, call.estimate())
		return
	}
	used := g.forward(w, r, call, key)
	// Settle even if the caller has hung up: then it matters most.
	ctx := context.WithoutCancel(r.Context())
	settled, err := g.limiter.Settle(ctx, reserved.ID, map[string]int64{tokens: used})
	if err != nil {
		g.log.Warn("not settled: the estimate stays charged", "error", err)
	}
	g.log.Info("settled", "reserved", call.estimate(), "used", used, "settled", settled.Settled)
}

// apiKey returns the key in an Authorization header. Exactly this key is
// counted and sent upstream. Surrounding blanks, or other bytes that the model
// may ignore, would turn one key into many.
func apiKey(authorization string) (key string, ok bool) {
	key, ok = strings.CutPrefix(authorization, "Bearer ")
	key = strings.Trim(key, " \t")
	other := func(r rune) bool { return r <= ' ' || r > '~' }
	return key, ok && key != "" && !strings.ContainsFunc(key, other)
}

// forward makes the call upstream and forwards the answer. It returns the
// number of tokens used, as far as known.
func (g *gateway) forward(w http.ResponseWriter, r *http.Request, call *call, key string) (used int64) {
	ctx, cancel := context.WithTimeout(r.Context(), callTimeout)
	defer cancel() // also stops upstream when the caller hangs up

	out, err := http.NewRequestWithContext(ctx, http.MethodPost,
		g.upstream.JoinPath(call.endpoint).String(), bytes.NewReader(call.body))
	if err != nil {
		writeError(w, http.StatusInternalServerError,
			apiError{Message: "The gateway is misconfigured.", Type: "server_error"})
		return 0
	}

	out.Header.Set("Content-Type", "application/json")
	out.Header.Set("Authorization", "Bearer "+key)
	answer, err := g.http.Do(out)
	if err != nil {
		g.log.Warn("the model does not answer", "error", err)
		writeError(w, http.StatusBadGateway, apiError{Message: "The model does not answer.", Type: "server_error"})
		if ctx.Err() != nil {
			return call.prompt // upstream may have read it, and hanging up early must not make it free
		}
		return 0
	}

	defer answer.Body.Close()

	if contentType := answer.Header.Get("Content-Type"); contentType != "" {
		w.Header().Set("Content-Type", contentType)
	}

	switch {
	case answer.StatusCode != http.StatusOK:
		// A failed call has used nothing, as far as we know.
		w.WriteHeader(answer.StatusCode)
		io.Copy(w, io.LimitReader(answer.Body, maxAnswer))
		return 0
	case call.Stream:
		return g.forwardStream(w, answer.Body, call)
	}

	return g.forwardWhole(w, answer.Body, call)
}

// forwardWhole forwards an answer that is not streamed.
func (g *gateway) forwardWhole(w http.ResponseWriter, body io.Reader, call *call) int64 {
	text, err := io.ReadAll(io.LimitReader(body, maxAnswer+1))
	var a completion
	switch {
	case err != nil, len(text) > maxAnswer:
		g.log.Warn("the model's answer is cut off", "error", err)
		writeError(w, http.StatusBadGateway, apiError{Message: "The model's answer is cut off.", Type: "server_error"})
		return call.prompt + estimateTokens(string(text)) // the model has produced this much
	case json.Unmarshal(text, &a) != nil || a.Usage == nil:
		g.log.Warn("the model does not report its usage")
	}

	w.Write(text) // an error means that the caller has hung up, which changes nothing
	if a.Usage == nil {
		return call.estimate()
	}

	return a.Usage.total()
}

// total returns the total tokens of u; never negative.
func (u *usage) total() int64 { return max(u.TotalTokens, 0) }

// refuse answers a call that d refuses, in OpenAI's form.
func refuse(w http.ResponseWriter, d *client.Decision, asked int64) {
	if d.DecidedBy == client.ByError {
		w.Header().Set("Retry-After", "1")
		writeError(w, http.StatusServiceUnavailable,
			apiError{Message: "The rate limiter does not answer.", Type: "server_error"})
		return
	}

	if d.Denied() {
		writeError(w, http.StatusForbidden,
			apiError{Message: "This API key is not allowed.", Type: "invalid_request_error", Code: "denied"})
		return
	}

	e := apiError{Type: d.Unit, Code: "rate_limit_exceeded"}
	what := fmt.Sprintf("%s per %s: limit %d, remaining %d", d.Unit,
		strings.TrimSuffix(d.Window.String(), "0s"), d.Limit, d.Remaining)
	if d.Unit == tokens {
		what += fmt.Sprintf(", requested %d", asked)
	}

	if d.RetryAfter == client.Never {
		e.Message = "Request too large for " + what + ". It can never be allowed."
	} else {
		e.Message = fmt.Sprintf("Rate limit reached on %s. Please try again in %s.", what, duration(d.RetryAfter))
		w.Header().Set("Retry-After-Ms", fmt.Sprint(d.RetryAfter.Milliseconds()))
	}

	d.SetHeaders(w.Header()) // Retry-After
	writeError(w, http.StatusTooManyRequests, e)
}
