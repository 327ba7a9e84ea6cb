package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

// A frame is built once per slot and then only patched: the correlation number (opaque), the born timestamp and
// the changing digits of the unique id have a fixed width, so sending a message costs a few stored bytes.
//
//	[total 4][kind 1 | header length 3][header .......][body .......]
//
// The header holds what a Java client of RocketMQ 5 writes for SEND_MESSAGE_V2 (request code 310), in its order.

const (
	requestCodeSendV2 = 310
	versionJava       = 513 // the number of the release, in which clients of RocketMQ 5 differ
	bornDigits        = 13
	opaqueDigits      = 7
	uniqueDigits      = 32
	uniqueFixed       = 20 // address, process and class loader: constant while a client lives
	kindJSON          = 0
	kindRocketMQ      = 1
	languageJava      = 0
)

// Frame is one request in place, with the positions of what changes from one sending to the next.
type Frame struct {
	bytes    []byte
	kind     byte
	opaqueAt int
	bornAt   int
	uniqueAt int
	signer   *Signer // nil: not signed
}

const (
	bornPlaceholder   = "1000000000000"
	uniquePlaceholder = "7F00000100002A139A554C0F0000000A"
	opaquePlaceholder = 1_000_000
)

// BuildFrame makes the request for one queue; the body is filled with a pattern that depends on the seed.
func BuildFrame(o Options, queue, seed int) Frame {
	properties := "UNIQ_KEY\x01" + uniquePlaceholder + "\x02WAIT\x01true\x02"
	if o.Tags != "" {
		properties += "TAGS\x01" + o.Tags + "\x02"
	}
	fields := append(signedFields(o), [][2]string{
		{"a", o.Group}, {"b", o.Topic}, {"c", "TBW102"}, {"d", strconv.Itoa(o.Queues)}, {"e", strconv.Itoa(queue)},
		{"f", "0"}, {"g", bornPlaceholder}, {"h", "0"}, {"i", properties}, {"j", "0"}, {"k", "false"},
		{"m", "false"}, {"n", o.BrokerName},
	}...)
	frame := Frame{kind: kindJSON}
	var header []byte
	if o.Header == headerRocketMQ {
		frame.kind = kindRocketMQ
		header = rocketmqHeader(fields)
	} else {
		header = jsonHeader(fields)
	}
	frame.bytes = binary.BigEndian.AppendUint32(nil, uint32(4+len(header)+o.BodyBytes))
	frame.bytes = binary.BigEndian.AppendUint32(frame.bytes, uint32(frame.kind)<<24|uint32(len(header)))
	frame.bytes = append(frame.bytes, header...)
	for i := 0; i < o.BodyBytes; i++ {
		frame.bytes = append(frame.bytes, byte('A'+(i*7+seed)%26))
	}
	frame.findPlaces(8 + len(header))
	frame.signer = newSigner(o, fields, frame.bytes[:8+len(header)], frame.bytes[8+len(header):])
	return frame
}

// findPlaces looks in the header only: the body may hold any text.
func (f *Frame) findPlaces(headerEnd int) {
	header := f.bytes[:headerEnd]
	f.bornAt = bytes.Index(header, []byte(bornPlaceholder))
	f.uniqueAt = bytes.Index(header, []byte(uniquePlaceholder))
	if f.kind == kindRocketMQ {
		f.opaqueAt = 8 + 5
	} else {
		f.opaqueAt = bytes.Index(header, []byte(`"opaque":`)) + len(`"opaque":`)
	}
	if f.bornAt < 0 || f.uniqueAt < 0 || f.opaqueAt < 8 {
		panic("a frame without its changing fields")
	}
}

func jsonHeader(fields [][2]string) []byte {
	var extFields []string
	for _, field := range fields {
		value := strings.NewReplacer("\x01", `\u0001`, "\x02", `\u0002`).Replace(field[1])
		extFields = append(extFields, fmt.Sprintf(`"%s":"%s"`, field[0], value))
	}
	return []byte(fmt.Sprintf(
		`{"code":%d,"extFields":{%s},"flag":0,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":%d}`,
		requestCodeSendV2, strings.Join(extFields, ","), opaquePlaceholder, versionJava))
}

func rocketmqHeader(fields [][2]string) []byte {
	header := binary.BigEndian.AppendUint16(nil, requestCodeSendV2)
	header = append(header, languageJava)
	header = binary.BigEndian.AppendUint16(header, versionJava)
	header = binary.BigEndian.AppendUint32(header, opaquePlaceholder)
	header = binary.BigEndian.AppendUint32(header, 0) // flag
	header = binary.BigEndian.AppendUint32(header, 0) // no remark
	var pairs []byte
	for _, field := range fields {
		pairs = binary.BigEndian.AppendUint16(pairs, uint16(len(field[0])))
		pairs = append(pairs, field[0]...)
		pairs = binary.BigEndian.AppendUint32(pairs, uint32(len(field[1])))
		pairs = append(pairs, field[1]...)
	}
	header = binary.BigEndian.AppendUint32(header, uint32(len(pairs)))
	return append(header, pairs...)
}

// Stamp writes the fields that change with every send. The unique id follows Java's: milliseconds since a start, then a
// 16-bit counter; it repeats only after more than 65,536 messages within one millisecond.
func (f *Frame) Stamp(opaque int, bornMS int64, counter uint64) {
	if f.kind == kindRocketMQ {
		binary.BigEndian.PutUint32(f.bytes[f.opaqueAt:], uint32(opaque))
	} else {
		putDecimal(f.bytes[f.opaqueAt:f.opaqueAt+opaqueDigits], int64(opaque))
	}
	putDecimal(f.bytes[f.bornAt:f.bornAt+bornDigits], bornMS)
	changing := uint64(uint32(bornMS))<<16 | counter&0xFFFF
	putHex(f.bytes[f.uniqueAt+uniqueFixed:f.uniqueAt+uniqueDigits], changing)
	if f.signer != nil {
		f.signer.sign(f)
	}
}

func putDecimal(target []byte, value int64) {
	for i := len(target) - 1; i >= 0; i-- {
		target[i] = byte('0' + value%10)
		value /= 10
	}
}

func putHex(target []byte, value uint64) {
	const digits = "0123456789ABCDEF"
	for i := len(target) - 1; i >= 0; i-- {
		target[i] = digits[value&15]
		value >>= 4
	}
}
