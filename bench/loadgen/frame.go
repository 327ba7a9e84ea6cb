package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sort"
	"strconv"
	"strings"
)

// A frame is built once per slot and then only patched: the correlation number (opaque), the born timestamp and
// the changing digits of unique ids and keys have a fixed width, so sending a message costs a few stored bytes.
//
//	[total 4][kind 1 | header length 3][header .......][body .......]
//
// By default the header holds what a Java client of RocketMQ 5 writes for SEND_MESSAGE_V2 (request code 310), in its order.
// The body of a batch (code 320) is a row of messages, each with its properties:
//
//	[total 4][magic 4][crc 4][flag 4][body length 4][body .......][properties length 2][properties .......]

const (
	versionJava          = 513 // the number of the release, in which clients of RocketMQ 5 differ
	bornDigits           = 13
	opaqueDigits         = 7
	uniqueDigits         = 32
	uniqueFixed          = 20 // address, process and class loader: constant while a client lives
	keyDigits            = 10
	topicDigits          = 6
	batchEntryBytesExtra = 512
	kindJSON             = 0
	kindRocketMQ         = 1
	languageJava         = 0
	languageGo           = 9
)

// Frame is one request in place, with the positions of what changes from one sending to the next.
type Frame struct {
	bytes    []byte
	kind     byte
	opaqueAt int
	bornAt   int
	uniqueAt int
	// keysAt are the digits of the keys, and moreUniqueAt the unique ids of the messages of a batch.
	keysAt       []int
	moreUniqueAt []int
	topicAt      int // the digits of the topic's number, if there are several topics
	topics       uint64
	signer       *Signer // nil: not signed
}

const (
	bornPlaceholder   = "1000000000000"
	uniquePlaceholder = "7F00000100002A139A554C0F0000000A"
	opaquePlaceholder = 1_000_000
	keyPlaceholder    = "key0000000000"
	keyFixed          = len(keyPlaceholder) - keyDigits
	topicPlaceholder  = "000000"
)

// longNames are the names of the fields with code 10, by those of one letter.
var longNames = map[string]string{
	"a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId", "f": "sysFlag",
	"g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes", "k": "unitMode", "m": "batch",
	"n": "brokerName",
}

// BuildFrame makes the request for one queue; the body is filled with a pattern that depends on the seed.
func BuildFrame(o Options, queue, seed int) Frame {
	body, bodyUniqueAt, bodyKeysAt := buildBody(o, seed)
	properties := "UNIQ_KEY\x01" + uniquePlaceholder + "\x02WAIT\x01true\x02"
	if o.Code != codeSendBatch {
		properties = messageProperties(o)
	}
	fields := []field{
		{"a", o.Group}, {"b", o.topicName()}, {"c", "TBW102"}, {"d", strconv.Itoa(o.Queues)}, {"e", strconv.Itoa(queue)},
		{"f", "0"}, {"g", bornPlaceholder}, {"h", "0"}, {"i", properties}, {"j", "0"}, {"k", "false"},
		{"m", strconv.FormatBool(o.Code == codeSendBatch)}, {"n", o.BrokerName},
	}
	if o.Code == codeSendV1 {
		for i := range fields {
			fields[i].name = longNames[fields[i].name]
		}
	}
	fields = append(signedFields(o), fields...)
	if o.Order == orderGo {
		fields = sortedByName(fields)
	}
	frame := Frame{kind: kindJSON}
	var header []byte
	if o.Header == headerRocketMQ {
		frame.kind = kindRocketMQ
		header = rocketmqHeader(o, fields)
	} else {
		header = jsonHeader(o, fields)
	}
	frame.bytes = binary.BigEndian.AppendUint32(nil, uint32(4+len(header)+len(body)))
	frame.bytes = binary.BigEndian.AppendUint32(frame.bytes, uint32(frame.kind)<<24|uint32(len(header)))
	frame.bytes = append(frame.bytes, header...)
	headerEnd := len(frame.bytes)
	frame.bytes = append(frame.bytes, body...)
	frame.findPlaces(headerEnd)
	if frame.topics = uint64(o.Topics); frame.topics > 0 {
		frame.topicAt = bytes.Index(frame.bytes, []byte(o.topicName())) + len(o.Topic)
	}
	for _, at := range bodyUniqueAt {
		frame.moreUniqueAt = append(frame.moreUniqueAt, headerEnd+at)
	}
	for _, at := range bodyKeysAt {
		frame.keysAt = append(frame.keysAt, headerEnd+at)
	}
	frame.signer = newSigner(o, fields, &frame, headerEnd)
	return frame
}

// messageProperties are the properties of one message in the order of Java's map: KEYS, UNIQ_KEY, WAIT, TAGS.
func messageProperties(o Options) string {
	properties := ""
	if o.Keys > 0 {
		keys := strings.TrimSuffix(strings.Repeat(keyPlaceholder+" ", o.Keys), " ")
		properties = "KEYS\x01" + keys + "\x02"
	}
	properties += "UNIQ_KEY\x01" + uniquePlaceholder + "\x02WAIT\x01true\x02"
	if o.Tags != "" {
		properties += "TAGS\x01" + o.Tags + "\x02"
	}
	return properties
}

// buildBody makes the body, and returns the positions of unique ids and keys in it if it is a batch.
func buildBody(o Options, seed int) (body []byte, uniqueAt, keysAt []int) {
	for message := 0; message < o.BatchMessages; message++ {
		var properties []byte
		bodyStart := len(body)
		if o.Code == codeSendBatch {
			properties = []byte(messageProperties(o))
			total := 5*4 + o.BodyBytes + 2 + len(properties)
			for _, value := range []int{total, 0, 0, 0, o.BodyBytes} {
				body = binary.BigEndian.AppendUint32(body, uint32(value))
			}
			bodyStart = len(body)
		}
		for i := 0; i < o.BodyBytes; i++ {
			body = append(body, byte('A'+(i*7+seed+message)%26))
		}
		if o.Code == codeSendBatch {
			bodyStart = len(body) + 2
			body = binary.BigEndian.AppendUint16(body, uint16(len(properties)))
			body = append(body, properties...)
			uniqueAt = append(uniqueAt, bodyStart+bytes.Index(properties, []byte(uniquePlaceholder)))
			keysAt = append(keysAt, keyPlaces(properties, bodyStart)...)
		}
	}
	return body, uniqueAt, keysAt
}

// keyPlaces returns the positions of the digits of every key in a text, which begins at a position.
func keyPlaces(text []byte, start int) []int {
	var places []int
	for at := 0; ; {
		found := bytes.Index(text[at:], []byte(keyPlaceholder))
		if found < 0 {
			return places
		}
		places = append(places, start+at+found+keyFixed)
		at += found + len(keyPlaceholder)
	}
}

// findPlaces looks in the header only: the body may hold any text.
func (f *Frame) findPlaces(headerEnd int) {
	header := f.bytes[:headerEnd]
	f.bornAt = bytes.Index(header, []byte(bornPlaceholder))
	f.uniqueAt = bytes.Index(header, []byte(uniquePlaceholder))
	f.keysAt = keyPlaces(header, 0)
	if f.kind == kindRocketMQ {
		f.opaqueAt = 8 + 5
	} else {
		f.opaqueAt = bytes.Index(header, []byte(`"opaque":`)) + len(`"opaque":`)
	}
	if f.bornAt < 0 || f.uniqueAt < 0 || f.opaqueAt < 8 {
		panic("a frame without its changing fields")
	}
}

// field is one extension field of a header.
type field struct{ name, value string }

func sortedByName(fields []field) []field {
	sorted := append([]field(nil), fields...)
	sort.SliceStable(sorted, func(i, j int) bool { return sorted[i].name < sorted[j].name })
	return sorted
}

// jsonHeader writes the parts of the header in the order of Java's library, or in that of Go's client.
func jsonHeader(o Options, fields []field) []byte {
	var extFields []string
	for _, one := range fields {
		value := strings.NewReplacer("\x01", `\u0001`, "\x02", `\u0002`).Replace(one.value)
		extFields = append(extFields, fmt.Sprintf(`"%s":"%s"`, one.name, value))
	}
	text := strings.Join(extFields, ",")
	if o.Order == orderGo {
		return []byte(fmt.Sprintf(
			`{"code":%d,"language":"GO","version":%d,"opaque":%d,"flag":0,"remark":"","extFields":{%s}}`,
			o.Code, versionJava, opaquePlaceholder, text))
	}
	return []byte(fmt.Sprintf(
		`{"code":%d,"extFields":{%s},"flag":0,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":%d}`,
		o.Code, text, opaquePlaceholder, versionJava))
}

func rocketmqHeader(o Options, fields []field) []byte {
	language := byte(languageJava)
	if o.Order == orderGo {
		language = languageGo
	}
	header := binary.BigEndian.AppendUint16(nil, uint16(o.Code))
	header = append(header, language)
	header = binary.BigEndian.AppendUint16(header, versionJava)
	header = binary.BigEndian.AppendUint32(header, opaquePlaceholder)
	header = binary.BigEndian.AppendUint32(header, 0) // flag
	header = binary.BigEndian.AppendUint32(header, 0) // no remark
	var pairs []byte
	for _, one := range fields {
		pairs = binary.BigEndian.AppendUint16(pairs, uint16(len(one.name)))
		pairs = append(pairs, one.name...)
		pairs = binary.BigEndian.AppendUint32(pairs, uint32(len(one.value)))
		pairs = append(pairs, one.value...)
	}
	header = binary.BigEndian.AppendUint32(header, uint32(len(pairs)))
	return append(header, pairs...)
}

// Stamp writes the fields that change with every send. The unique id follows Java's: milliseconds since a start, then a
// 16-bit counter; it repeats only after more than 65,536 messages within one millisecond. The messages of a batch get
// the numbers that follow, and the request gets the first.
func (f *Frame) Stamp(opaque int, bornMS int64, counter uint64) {
	if f.kind == kindRocketMQ {
		binary.BigEndian.PutUint32(f.bytes[f.opaqueAt:], uint32(opaque))
	} else {
		putDecimal(f.bytes[f.opaqueAt:f.opaqueAt+opaqueDigits], int64(opaque))
	}
	putDecimal(f.bytes[f.bornAt:f.bornAt+bornDigits], bornMS)
	f.putUnique(f.uniqueAt, bornMS, counter)
	if f.topics > 0 {
		putDecimal(f.bytes[f.topicAt:f.topicAt+topicDigits], int64(counter%f.topics))
	}
	for i, at := range f.moreUniqueAt {
		f.putUnique(at, bornMS, counter+uint64(i)+1)
	}
	for i, at := range f.keysAt {
		putDecimal(f.bytes[at:at+keyDigits], int64((counter+uint64(i))%10_000_000_000))
	}
	if f.signer != nil {
		f.signer.sign(f)
	}
}

// numbers is how many values of the counter one sending takes.
func (f *Frame) numbers() uint64 {
	return uint64(max(1+len(f.moreUniqueAt), len(f.keysAt)))
}

func (f *Frame) putUnique(at int, bornMS int64, counter uint64) {
	changing := uint64(uint32(bornMS))<<16 | counter&0xFFFF
	putHex(f.bytes[at+uniqueFixed:at+uniqueDigits], changing)
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
