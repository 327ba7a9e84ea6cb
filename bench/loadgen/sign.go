package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"hash"
)

// Requests signed as RocketMQ's clients sign them: HmacSHA1 over the values of the fields in the order of their names,
// and the body. The signed text is kept beside the frame and patched with it, so signing costs one HMAC per message.

const signaturePlaceholder = "AAAAAAAAAAAAAAAAAAAAAAAAAAA="

// Signer signs a frame again after each change of its fields. Without an account frames are not signed.
type Signer struct {
	mac         hash.Hash
	content     []byte
	changing    []change
	signatureAt int
	sum         [sha1.Size]byte
}

// change is a part of the frame that differs from one sending to the next, with its place in the signed text.
type change struct{ contentAt, frameAt, length int }

// signedFields are the two fields that an account adds.
func signedFields(o Options) []field {
	if o.AccessKey == "" {
		return nil
	}
	return []field{{"AccessKey", o.AccessKey}, {"Signature", signaturePlaceholder}}
}

// newSigner takes a frame that is complete but for its signature. The signature itself is not signed.
func newSigner(o Options, fields []field, f *Frame, headerEnd int) *Signer {
	if o.AccessKey == "" {
		return nil
	}
	s := &Signer{mac: hmac.New(sha1.New, []byte(o.SecretKey))}
	for _, one := range sortedByName(fields) {
		if one.name != "Signature" {
			s.content = append(s.content, one.value...)
		}
	}
	values := s.content
	s.content = append(s.content[:len(values):len(values)], f.bytes[headerEnd:]...)
	s.signatureAt = bytes.Index(f.bytes[:headerEnd], []byte(signaturePlaceholder))
	s.add(bytes.Index(values, []byte(bornPlaceholder)), f.bornAt, bornDigits)
	s.add(bytes.Index(values, []byte(uniquePlaceholder)), f.uniqueAt, uniqueDigits)
	for i, at := range keyPlaces(values, 0) {
		s.add(at, f.keysAt[i], keyDigits)
	}
	for _, at := range f.moreUniqueAt {
		s.add(len(values)+at-headerEnd, at, uniqueDigits)
	}
	for _, at := range f.keysAt {
		if at >= headerEnd {
			s.add(len(values)+at-headerEnd, at, keyDigits)
		}
	}
	if s.signatureAt < 0 {
		panic("a signed frame without a signature")
	}
	return s
}

func (s *Signer) add(contentAt, frameAt, length int) {
	if contentAt < 0 {
		panic("a signed frame without its changing fields")
	}
	s.changing = append(s.changing, change{contentAt, frameAt, length})
}

// sign copies the changed fields of the frame to the signed text, and writes the new signature to the frame.
func (s *Signer) sign(f *Frame) {
	for _, one := range s.changing {
		copy(s.content[one.contentAt:one.contentAt+one.length], f.bytes[one.frameAt:])
	}
	s.mac.Reset()
	s.mac.Write(s.content)
	base64.StdEncoding.Encode(f.bytes[s.signatureAt:s.signatureAt+len(signaturePlaceholder)], s.mac.Sum(s.sum[:0]))
}
