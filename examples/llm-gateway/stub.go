package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// stub is a model server that gives everyone the same answer, one token at a time.
type stub struct{ pause time.Duration }

var verse = strings.Fields(`Every one who asks is told at once whether there is something left for them today and
	those who wait a little find that there is again`)

// ServeHTTP answers a call of one of the endpoints.
func (s stub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	call, err := readers[r.URL.Path](http.MaxBytesReader(w, r.Body, maxRequest))
	if err != nil {
		writeError(w, http.StatusBadRequest, apiError{Message: err.Error(), Type: "invalid_request_error"})
		return
	}

	if call.endpoint == embeddings {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w,
			`{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.6,0.8]}],"usage":{"prompt_tokens":%[1]d,"total_tokens":%[1]d}}`,
			call.prompt)
		return
	}

	words := verse[:min(int64(len(verse)), call.answer)]
	u := &usage{PromptTokens: call.prompt, CompletionTokens: int64(len(words))}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	answer := completion{ID: "chatcmpl-stub", Created: time.Now().Unix(), Model: call.Model}
	stop := "stop"
	if !call.Stream {
		answer.Object, answer.Usage = "chat.completion", u
		answer.Choices = []choice{{Message: &text{Role: "assistant",
			Content: strings.Join(words, " ")}, FinishReason: &stop}}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(answer)
		return
	}

	w.Header().Set("Content-Type", "text/event-stream")
	flusher := http.NewResponseController(w)
	send := func(choices []choice, u *usage) bool {
		answer.Choices, answer.Usage = choices, u
		data, err := json.Marshal(answer)
		if err != nil {
			return false
		}
		_, err = fmt.Fprintf(w, "data: %s\n\n", data)
		return err == nil && flusher.Flush() == nil
	}
	answer.Object = "chat.completion.chunk"

	for _, word := range words {
		if !send([]choice{{Delta: &text{Content: word + " "}}}, nil) || !s.rest(r) {
			return
		}
	}

	send([]choice{{Delta: &text{}, FinishReason: &stop}}, nil)
	if call.IncludeUsage {
		send([]choice{}, u)
	}

	fmt.Fprint(w, "data: [DONE]\n\n")
}

// rest pauses between two tokens. It reports false if the caller has hung up.
func (s stub) rest(r *http.Request) bool {
	t := time.NewTimer(s.pause)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-r.Context().Done():
		return false
	}
}
