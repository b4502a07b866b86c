package sftpd

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"

	"golang.org/x/sys/unix"
)

// SumRequest asks for the checksum of a file; one JSON object after the other.
type SumRequest struct {
	Path string `json:"path"`
	// Bytes is the path if it is not valid UTF-8, nil otherwise.
	Bytes []byte `json:"bytes,omitempty"`
}

// SumReply answers in the order of the requests.
type SumReply struct {
	SHA256 string `json:"sha256,omitempty"` // in hexadecimal
	Error  string `json:"error,omitempty"`
}

// maxSumRequest bounds one request, in bytes; paths are shorter.
const maxSumRequest = 64 << 10

// serveSums answers requests until there are none.
func serveSums(in io.Reader, out io.Writer, f *files) error {
	bounded := &io.LimitedReader{R: in}
	requests, replies := json.NewDecoder(bounded), json.NewEncoder(out)
	for {
		bounded.N = maxSumRequest
		var request SumRequest
		switch err := requests.Decode(&request); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return replies.Encode(SumReply{Error: "this is no request for a checksum"})
		}
		path := request.Path
		if request.Bytes != nil {
			path = string(request.Bytes)
		}
		sum, err := sumOf(f.absolute(path))
		reply := SumReply{SHA256: sum}
		if err != nil {
			reply = SumReply{Error: err.Error()}
		}
		if err := replies.Encode(reply); err != nil {
			return err
		}
	}
}

func sumOf(path string) (string, error) {
	f, err := open(path, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	hash := sha256.New()
	if _, err := io.CopyBuffer(hash, struct{ io.Reader }{f.File}, make([]byte, 1<<20)); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
