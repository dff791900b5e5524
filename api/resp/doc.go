// Package resp is the door for clients of Redis: it speaks RESP2 and RESP3, the
// protocols of Redis, and knows the commands with which they limit rates.
//
// It has a reader of its own, because libraries for servers have no bounds on
// what strangers send. docs/design/doors.md says more.
package resp
