// Package redis tries the Redis protocol with real clients and beside real
// servers; see "make redis".
package redis
