package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/rlnode/rlnode/client"
)

const (
	// usualAnswer is reserved for an answer when a call does not bound it; what is more becomes a debt.
	usualAnswer = 256
	maxChoices  = 128
	// maxTokens bounds what may be asked for, so that sums stay far from overflowing.
	maxTokens = 10_000_000
)

// call is the part of a request that the gateway looks at.
type call struct {
	Model               string    `json:"model"`
	Messages            []message `json:"messages"`
	MaxTokens           *int64    `json:"max_tokens"`
	MaxCompletionTokens *int64    `json:"max_completion_tokens"`
	N                   *int64    `json:"n"`
	Stream              bool      `json:"stream"`
	StreamOptions       struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`

	body   []byte // what goes upstream
	prompt int64  // tokens, roughly
	answer int64  // tokens at most, or as usual
}

// message is one of a conversation. Its content is a string, or a list of parts.
type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// readCall reads a request, and makes it ask for the usage at the end of its stream.
func readCall(body io.Reader) (*call, error) {
	text, err := io.ReadAll(body)
	if err != nil {
		return nil, fmt.Errorf("the body can't be read: %w", err)
	}
	c := &call{body: text}
	if err := json.Unmarshal(text, c); err != nil {
		return nil, fmt.Errorf("the body is not a chat completion: %w", err)
	}
	if len(c.Messages) == 0 {
		return nil, errors.New("messages are missing")
	}
	c.answer = usualAnswer
	for _, bound := range []*int64{c.MaxTokens, c.MaxCompletionTokens} {
		if bound != nil {
			c.answer = *bound
		}
	}
	n := int64(1)
	if c.N != nil {
		n = *c.N
	}
	if c.answer < 1 || c.answer > maxTokens || n < 1 || n > maxChoices {
		return nil, fmt.Errorf("max_tokens must be 1 to %d, and n 1 to %d", maxTokens, maxChoices)
	}
	c.answer *= n
	for _, m := range c.Messages {
		c.prompt += count(string(m.Content)) + 3 // for who speaks
	}
	if !c.Stream || c.StreamOptions.IncludeUsage {
		return c, nil
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, err
	}
	all["stream_options"] = json.RawMessage(`{"include_usage":true}`)
	c.body, err = json.Marshal(all)
	return c, err
}

// estimate is what a call may use.
func (c *call) estimate() int64 { return c.prompt + c.answer }

// count is roughly how many tokens text has. A tokenizer would be exact; settling makes good what this is not.
func count(text string) int64 { return int64(len(text)+3) / 4 }

// completion is an answer, or one event of a stream.
type completion struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"`
	Model   string   `json:"model"`
	Choices []choice `json:"choices"`
	Usage   *usage   `json:"usage,omitempty"`
}

type choice struct {
	Index        int     `json:"index"`
	Message      *text   `json:"message,omitempty"`
	Delta        *text   `json:"delta,omitempty"`
	FinishReason *string `json:"finish_reason"`
}

type text struct {
	Role    string `json:"role,omitempty"`
	Content string `json:"content"`
}

type usage struct {
	PromptTokens     int64 `json:"prompt_tokens"`
	CompletionTokens int64 `json:"completion_tokens"`
	TotalTokens      int64 `json:"total_tokens"`
}

// apiError is an error as OpenAI's clients know it.
type apiError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code,omitempty"`
}

func writeError(w http.ResponseWriter, status int, e apiError) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]apiError{"error": e}) // an error is the connection's
}

// setHeaders sets x-ratelimit-{limit,remaining,reset}-{requests,tokens}: of several limits in a unit, those of the one
// that has the least left.
func setHeaders(h http.Header, limits []client.LimitDecision) {
	least := map[string]*client.LimitDecision{}
	for i := range limits {
		l := &limits[i]
		if l.Unit != requests && l.Unit != tokens || l.Shadow {
			continue
		}
		if least[l.Unit] == nil || l.Remaining < least[l.Unit].Remaining {
			least[l.Unit] = l
		}
	}
	for unit, l := range least {
		h.Set("x-ratelimit-limit-"+unit, strconv.FormatInt(l.Limit, 10))
		h.Set("x-ratelimit-remaining-"+unit, strconv.FormatInt(l.Remaining, 10))
		h.Set("x-ratelimit-reset-"+unit, duration(l.ResetAfter))
	}
}

// duration is d as OpenAI writes it: 120ms, 1s, 6m0s.
func duration(d time.Duration) string {
	if d > time.Second {
		d = (d + 10*time.Millisecond - 1).Truncate(10 * time.Millisecond)
	}
	return d.String()
}
