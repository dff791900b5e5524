package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
)

// textBytes returns how many bytes of text v contains: content, but also
// reasoning and the arguments of tools, which callers could otherwise get for
// free by hanging up before the end.
func textBytes(v any) (n int) {
	switch v := v.(type) {
	case string:
		return len(v)
	case []any:
		for _, one := range v {
			n += textBytes(one)
		}
	case map[string]any:
		for _, one := range v {
			n += textBytes(one)
		}
	}

	return n
}

// forwardStream forwards server-sent events as they arrive. It returns the
// number of tokens used: the total that the model reports at the end or,
// without a report, an estimate for the prompt and the text so far.
func (g *gateway) forwardStream(w http.ResponseWriter, body io.Reader, call *call) int64 {
	flusher := http.NewResponseController(w)
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 4096), maxEvent)
	var reported *usage
	var characters int

	skipping := false // within an event that the caller did not ask for
	for lines.Scan() {
		line := lines.Bytes()
		if data, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			var event struct {
				Choices []struct {
					Delta map[string]any `json:"delta"`
				} `json:"choices"`
				Usage *usage `json:"usage"`
			}
			if json.Unmarshal(data, &event) == nil {
				for _, c := range event.Choices {
					delete(c.Delta, "role")
					characters += textBytes(c.Delta)
				}
				if event.Usage != nil {
					reported = event.Usage
					skipping = len(event.Choices) == 0 && !call.IncludeUsage
				}
			}
		}

		if skipping {
			skipping = len(line) > 0 // until the empty line that ends the event
			continue
		}
		if _, err := w.Write(append(line, '\n')); err != nil {
			break
		}
		if len(line) == 0 && flusher.Flush() != nil {
			break
		}
	}

	if err := lines.Err(); err != nil {
		g.log.Warn("the stream is cut off", "error", err)
	}

	if reported != nil {
		return reported.total()
	}

	return call.prompt + int64(characters+3)/4
}
