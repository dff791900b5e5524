package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
)

// stream passes server-sent events on as they come, and returns the tokens used: what the model says at the end, or, when
// there is no end, the prompt and what has come until then.
func (g *gateway) stream(w http.ResponseWriter, body io.Reader, call *call) int64 {
	flusher := http.NewResponseController(w)
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 4096), maxEvent)
	var reported *usage
	var characters int
	hidden := false // an event that the caller did not ask for
	for lines.Scan() {
		line := lines.Bytes()
		if data, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			var event completion
			if json.Unmarshal(data, &event) == nil {
				for _, c := range event.Choices {
					if c.Delta != nil {
						characters += len(c.Delta.Content)
					}
				}
				if event.Usage != nil {
					reported = event.Usage
					hidden = len(event.Choices) == 0 && !call.StreamOptions.IncludeUsage
				}
			}
		}
		if hidden {
			hidden = len(line) > 0 // to its empty line
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
