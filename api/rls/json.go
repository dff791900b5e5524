package rls

import (
	"bytes"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/rlnode/rlnode/api"
)

// Like the reference server, the data plane also accepts the messages in
// proto3's JSON. They are translated from and to the wire format.

// FromJSON translates a request from JSON to the wire format.
func FromJSON(body []byte) ([]byte, *api.Error) {
	m := dynamicpb.NewMessage(messageOf(servicePackage + ".RateLimitRequest"))
	if err := protojson.Unmarshal(body, m); err != nil {
		return nil, api.Errorf(api.BadJSON, "the body is not a RateLimitRequest: %s", api.Excerpt(fmt.Sprint(err)))
	}
	b, err := proto.Marshal(m)
	if err != nil {
		return nil, unreadableError()
	}
	return b, nil
}

// AppendJSON translates a response from the wire format to JSON, and appends it.
func AppendJSON(b, response []byte) ([]byte, error) {
	m := dynamicpb.NewMessage(messageOf(servicePackage + ".RateLimitResponse"))
	if err := proto.Unmarshal(response, m); err != nil {
		return b, fmt.Errorf("response to JSON: %w", err)
	}

	spaced, err := protojson.Marshal(m)
	if err != nil {
		return b, fmt.Errorf("response to JSON: %w", err)
	}

	var plain bytes.Buffer
	if err := json.Compact(&plain, spaced); err != nil { // protojson adds spaces at random
		return b, fmt.Errorf("response to JSON: %w", err)
	}

	return append(b, plain.Bytes()...), nil
}
