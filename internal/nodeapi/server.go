package nodeapi

import (
	"log/slog"
	"net/http"
	"time"
)

// receiveBuffer bounds, in bytes, what of a machine's readings waits in the
// head unread. When it is full the machine keeps its newest reading and drops
// those before, so a slow head gets few readings, but no old ones.
const receiveBuffer = 64 << 10

// NewServer is the head's door for machines; serve it with ServeTLS(listener, "", "").
func NewServer(cfg Config) *http.Server {
	return &http.Server{
		Handler: Handler(cfg), TLSConfig: cfg.Authority.ServerConfig(),
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: 5 * time.Second, PingTimeout: 5 * time.Second, WriteByteTimeout: 10 * time.Second,
			MaxReceiveBufferPerStream: receiveBuffer, MaxReceiveBufferPerConnection: 2 * receiveBuffer, MaxConcurrentStreams: 16,
		},
		ErrorLog: slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}
}
