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
	bornAt      int
	uniqueAt    int
	signatureAt int
	sum         [sha1.Size]byte
}

// signedFields are the two fields that an account adds. By their names they come before all others, which is the order
// of signing; the signature itself is not signed.
func signedFields(o Options) [][2]string {
	if o.AccessKey == "" {
		return nil
	}
	return [][2]string{{"AccessKey", o.AccessKey}, {"Signature", signaturePlaceholder}}
}

// newSigner takes the fields in the order of their names; frame is complete except for the signature.
func newSigner(o Options, fields [][2]string, frame, body []byte) *Signer {
	if o.AccessKey == "" {
		return nil
	}
	s := &Signer{mac: hmac.New(sha1.New, []byte(o.SecretKey))}
	for _, field := range fields {
		if field[0] != "Signature" {
			s.content = append(s.content, field[1]...)
		}
	}
	s.bornAt = bytes.Index(s.content, []byte(bornPlaceholder))
	s.uniqueAt = bytes.Index(s.content, []byte(uniquePlaceholder))
	s.content = append(s.content, body...)
	s.signatureAt = bytes.Index(frame, []byte(signaturePlaceholder))
	if s.bornAt < 0 || s.uniqueAt < 0 || s.signatureAt < 0 {
		panic("a signed frame without its changing fields")
	}
	return s
}

// sign copies the changed fields of the frame to the signed text, and writes the new signature to the frame.
func (s *Signer) sign(f *Frame) {
	copy(s.content[s.bornAt:s.bornAt+bornDigits], f.bytes[f.bornAt:])
	copy(s.content[s.uniqueAt:s.uniqueAt+uniqueDigits], f.bytes[f.uniqueAt:])
	s.mac.Reset()
	s.mac.Write(s.content)
	base64.StdEncoding.Encode(f.bytes[s.signatureAt:s.signatureAt+len(signaturePlaceholder)], s.mac.Sum(s.sum[:0]))
}
