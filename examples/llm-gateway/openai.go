package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/rlnode/rlnode/client"
)

const (
	// defaultAnswerTokens is how many tokens to reserve for the answer if the call
	// sets no bound. If the answer takes more, the excess becomes a debt.
	defaultAnswerTokens = 256
	maxChoices          = 128
	maxRole             = 64 // bytes of a message's role; they are not counted
	// maxTokens bounds the tokens that a call may ask for, so that sums can't overflow.
	maxTokens = 10_000_000
)

// call is the part of a request that the gateway uses.
type call struct {
	Model        string
	Stream       bool
	IncludeUsage bool // the caller wants the usage at the end of its stream

	endpoint string
	body     []byte // to send upstream
	prompt   int64  // estimated tokens of the prompt
	answer   int64  // bound on the tokens of the answer, or defaultAnswerTokens
}

// readers are the endpoints, and how to read a call of each.
var readers = map[string]func(body io.Reader) (*call, error){completions: readCompletion, embeddings: readEmbedding}

// readCompletion reads a chat completion and makes it ask for the usage at the end of its stream.
func readCompletion(body io.Reader) (*call, error) {
	c := &call{endpoint: completions}
	var messages []map[string]json.RawMessage
	var maxAnswer, maxCompletion, n, bestOf *int64
	var streamOptions map[string]json.RawMessage
	known := map[string]any{
		"model": &c.Model, "messages": &messages, "stream": &c.Stream, "stream_options": &streamOptions,
		"max_tokens": &maxAnswer, "max_completion_tokens": &maxCompletion, "n": &n, "best_of": &bestOf,
	}
	all, err := c.readFields(body, known)
	if err != nil {
		return nil, err
	}
	if len(messages) == 0 {
		return nil, errors.New("messages are missing")
	}

	for _, m := range messages {
		c.prompt += 3 // for the role
		for name, value := range m {
			if name != "role" || len(value) > maxRole {
				c.prompt += estimateTokens(string(value))
			}
		}
	}

	if err := c.setAnswer(larger(maxAnswer, maxCompletion, defaultAnswerTokens), larger(n, bestOf, 1)); err != nil {
		return nil, err
	}

	if c.Stream {
		c.IncludeUsage = string(streamOptions["include_usage"]) == "true"
		all["stream_options"] = json.RawMessage(`{"include_usage":true}`)
	}

	c.body, err = json.Marshal(all)
	return c, err
}

// readEmbedding reads a request for embeddings. Its input is a text, several of
// them, or the same in tokens, which are numbers.
func readEmbedding(body io.Reader) (*call, error) {
	c := &call{endpoint: embeddings}
	var input json.RawMessage
	all, err := c.readFields(body, map[string]any{"model": &c.Model, "input": &input})
	if err != nil {
		return nil, err
	}

	var one string
	var texts []string
	var numbers []int64
	var lists [][]int64
	switch {
	case len(input) == 0:
		return nil, errors.New("input is missing")
	case json.Unmarshal(input, &one) == nil:
		c.prompt += estimateTokens(one)
	case json.Unmarshal(input, &texts) == nil:
		for _, text := range texts {
			c.prompt += estimateTokens(text)
		}
	case json.Unmarshal(input, &numbers) == nil:
		c.prompt += int64(len(numbers))
	case json.Unmarshal(input, &lists) == nil:
		for _, list := range lists {
			c.prompt += int64(len(list))
		}
	default:
		return nil, errors.New("input must be a text, an array of texts, or tokens")
	}
	c.body, err = json.Marshal(all)
	return c, err
}

// readFields reads an object into known, by name. It returns all fields, from
// which the upstream request is encoded anew: if a field occurred twice, or in
// another case, the model might use the other one. Fields that are not known
// count as part of the prompt, because tools and the like are.
func (c *call) readFields(body io.Reader, known map[string]any) (all map[string]json.RawMessage, err error) {
	text, err := io.ReadAll(body)
	if err != nil {
		return nil, fmt.Errorf("the body can't be read: %w", err)
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("the body is no such call: %w", err)
	}

	for name, value := range all {
		if into, ok := known[name]; ok {
			if err := json.Unmarshal(value, into); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			continue
		}

		for other := range known {
			if strings.EqualFold(name, other) {
				return nil, fmt.Errorf("%q must be written %s", name, other)
			}
		}

		if value[0] == '{' || value[0] == '[' || value[0] == '"' {
			c.prompt += estimateTokens(string(value))
		}
	}

	return all, nil
}

// larger returns the larger of two numbers that may be missing, because it is
// unknown which of them the model uses.
func larger(a, b *int64, usual int64) int64 {
	switch {
	case a == nil && b == nil:
		return usual
	case a == nil:
		return *b
	case b == nil:
		return *a
	}
	if *a < 1 || *b < 1 {
		return min(*a, *b) // setAnswer then refuses it
	}
	return max(*a, *b)
}

// setAnswer sets c's answer to n answers of at most answer tokens each.
func (c *call) setAnswer(answer, n int64) error {
	if answer < 1 || answer > maxTokens || n < 1 || n > maxChoices {
		return fmt.Errorf("max_tokens must be 1 to %d, and n 1 to %d", maxTokens, maxChoices)
	}
	c.answer = answer * n
	return nil
}

// estimate returns the tokens that a call may use.
func (c *call) estimate() int64 { return c.prompt + c.answer }

// estimateTokens estimates the tokens in text. A tokenizer would be exact;
// settling corrects the difference.
func estimateTokens(text string) int64 { return int64(len(text)+3) / 4 }

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

// apiError is an error in the form that OpenAI's clients expect.
type apiError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code,omitempty"`
}

func writeError(w http.ResponseWriter, status int, e apiError) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]apiError{"error": e}) // an error means that the connection is broken
}

// setHeaders sets x-ratelimit-{limit,remaining,reset}-{requests,tokens}. If a
// unit has several limits, it uses the one with the least left.
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

// duration formats d as OpenAI does: 120ms, 1s, 6m0s.
func duration(d time.Duration) string {
	if d > time.Second {
		d = (d + 10*time.Millisecond - 1).Truncate(10 * time.Millisecond)
	}
	return d.String()
}
