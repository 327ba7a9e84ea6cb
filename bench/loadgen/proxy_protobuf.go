package main

import "encoding/binary"

// The few messages of RocketMQ's gRPC protocol that a load needs, encoded by hand, so that the generator costs little
// and has no dependency. Names and numbers of fields are those of rocketmq.proto.

const (
	kindVarint = 0
	kindBytes  = 2

	statusOK              = 20000
	statusMessageNotFound = 40404

	clientTypeProducer       = 1
	clientTypeSimpleConsumer = 3
	messageTypeNormal        = 1
	encodingIdentity         = 1
)

func appendNumber(to []byte, field int, value uint64) []byte {
	to = binary.AppendUvarint(to, uint64(field<<3|kindVarint))
	return binary.AppendUvarint(to, value)
}

func appendBytes(to []byte, field int, value []byte) []byte {
	to = binary.AppendUvarint(to, uint64(field<<3|kindBytes))
	to = binary.AppendUvarint(to, uint64(len(value)))
	return append(to, value...)
}

func appendText(to []byte, field int, value string) []byte {
	return appendBytes(to, field, []byte(value))
}

// resource is a topic or a group.
func resource(name string) []byte { return appendText(nil, 2, name) }

func duration(seconds int) []byte { return appendNumber(nil, 1, uint64(seconds)) }

// sendRequest has one message of a topic.
func sendRequest(topic, messageID string, bornSeconds int64, body []byte) []byte {
	system := appendText(nil, 3, messageID)
	system = appendNumber(system, 5, encodingIdentity)
	system = appendNumber(system, 6, messageTypeNormal)
	system = appendBytes(system, 7, appendNumber(nil, 1, uint64(bornSeconds)))
	system = appendText(system, 8, "load-generator")
	message := appendBytes(make([]byte, 0, len(body)+128), 1, resource(topic))
	message = appendBytes(message, 3, system)
	message = appendBytes(message, 4, body)
	return appendBytes(make([]byte, 0, len(message)+8), 1, message)
}

// receiveRequest asks a broker for up to `batch` messages of a topic.
func receiveRequest(o ProxyOptions) []byte {
	queue := appendBytes(nil, 1, resource(o.Topic))
	queue = appendNumber(queue, 2, ^uint64(0)) // any queue: -1
	queue = appendBytes(queue, 4, appendText(nil, 1, o.BrokerName))
	request := appendBytes(nil, 1, resource(o.Group))
	request = appendBytes(request, 2, queue)
	request = appendBytes(request, 3, subscribeAll())
	request = appendNumber(request, 4, uint64(o.Batch))
	request = appendBytes(request, 5, duration(invisibleSeconds))
	return appendBytes(request, 7, duration(pollSeconds))
}

func ackRequest(o ProxyOptions, messageID, receipt []byte) []byte {
	entry := appendBytes(nil, 1, messageID)
	entry = appendBytes(entry, 2, receipt)
	request := appendBytes(nil, 1, resource(o.Group))
	request = appendBytes(request, 2, resource(o.Topic))
	return appendBytes(request, 3, entry)
}

// subscribeAll is the filter expression "*", by tag.
func subscribeAll() []byte { return appendText(appendNumber(nil, 1, 1), 2, "*") }

// settingsCommand is what a client sends first on its Telemetry stream.
func settingsCommand(o ProxyOptions) []byte {
	settings := appendNumber(nil, 1, clientTypeProducer)
	if o.Mode == modeReceive {
		settings = appendNumber(nil, 1, clientTypeSimpleConsumer)
	}
	settings = appendBytes(settings, 4, duration(3))
	if o.Mode == modeReceive {
		entry := appendBytes(appendBytes(nil, 1, resource(o.Topic)), 2, subscribeAll())
		subscription := appendBytes(nil, 1, resource(o.Group))
		settings = appendBytes(settings, 6, appendBytes(subscription, 2, entry))
	} else {
		settings = appendBytes(settings, 5, appendBytes(nil, 1, resource(o.Topic)))
	}
	agent := appendText(appendNumber(nil, 1, 4), 2, "5.0.0") // Go
	return appendBytes(nil, 2, appendBytes(settings, 7, agent))
}

// findField returns the first bytes and the last number of a field; both are empty without it or for a malformed message.
func findField(message []byte, wanted int) (content []byte, number uint64) {
	for len(message) > 0 {
		key, size := binary.Uvarint(message)
		if size <= 0 {
			return nil, 0
		}
		message = message[size:]
		value, size := binary.Uvarint(message)
		if size <= 0 {
			return nil, 0
		}
		message = message[size:]
		switch key & 7 {
		case kindVarint:
			if int(key>>3) == wanted {
				number = value
			}
		case kindBytes:
			if value > uint64(len(message)) {
				return nil, 0
			}
			if int(key>>3) == wanted && content == nil {
				content = message[:value]
			}
			message = message[value:]
		default:
			return nil, 0
		}
	}
	return content, number
}

// statusCode is the code of the status in field 1 of a reply; 0 without one.
func statusCode(reply []byte) uint64 {
	status, _ := findField(reply, 1)
	_, code := findField(status, 1)
	return code
}
