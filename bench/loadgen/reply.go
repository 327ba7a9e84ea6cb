package main

import (
	"bytes"
	"encoding/binary"
)

// Reply has the fields of an answer that the load generator needs.
type Reply struct {
	Code   int
	Opaque int
}

var (
	codeKey   = []byte(`"code":`)
	opaqueKey = []byte(`"opaque":`)
)

// ParseReply reads code and opaque from a header of either kind; false means that it is invalid.
func ParseReply(kind byte, header []byte) (Reply, bool) {
	switch kind {
	case kindRocketMQ:
		if len(header) < 21 {
			return Reply{}, false
		}
		return Reply{
			Code:   int(int16(binary.BigEndian.Uint16(header))),
			Opaque: int(int32(binary.BigEndian.Uint32(header[5:]))),
		}, true
	case kindJSON:
		code, hasCode := numberAfter(header, codeKey)
		opaque, hasOpaque := numberAfter(header, opaqueKey)
		return Reply{Code: code, Opaque: opaque}, hasCode && hasOpaque
	}
	return Reply{}, false
}

// numberAfter finds `"key":<digits>`. A quoted key cannot occur inside a JSON string, where quotes are escaped.
func numberAfter(header, key []byte) (int, bool) {
	at := bytes.Index(header, key)
	if at < 0 {
		return 0, false
	}
	at += len(key)
	sign := 1
	if at < len(header) && header[at] == '-' {
		sign = -1
		at++
	}
	start := at
	value := 0
	for at < len(header) && at-start < 10 && header[at] >= '0' && header[at] <= '9' {
		value = value*10 + int(header[at]-'0')
		at++
	}
	return sign * value, at > start
}
