package api

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/gpulab/gpulab/internal/users"
)

// DeviceAsk is what a program asks for.
type DeviceAsk struct {
	Client string `json:"client" minLength:"1" maxLength:"60" doc:"The machine on which the program runs, for the person to recognise it" example:"ada's laptop (Linux)"`
	Scope  string `json:"scope,omitempty" enum:"read,launch,full" default:"launch" doc:"What the token may do"`
	Days   int    `json:"days,omitempty" enum:"7,30,90,365" default:"30" doc:"How long it lasts"`
}

// DeviceCode is what the program shows and keeps.
type DeviceCode struct {
	DeviceCode              string `json:"deviceCode" doc:"A secret of the program, to ask with"`
	UserCode                string `json:"userCode" doc:"For the person to compare"`
	VerificationURI         string `json:"verificationUri" doc:"Where the person types it"`
	VerificationURIComplete string `json:"verificationUriComplete" doc:"The same, with the code in it"`
	ExpiresIn               int    `json:"expiresIn" doc:"Seconds in which somebody has to confirm"`
	Interval                int    `json:"interval" doc:"Seconds to wait between two questions"`
}

// DeviceAnswer is what came of it so far.
type DeviceAnswer struct {
	State    string     `json:"state" enum:"pending,approved" doc:"pending is answered with status 202"`
	Interval int        `json:"interval,omitempty" doc:"Seconds to wait before the next question, while pending"`
	Token    string     `json:"token,omitempty" doc:"The access token, once: it is shown nowhere again"`
	Scope    string     `json:"scope,omitempty"`
	Handle   string     `json:"handle,omitempty" doc:"Who confirmed"`
	Expires  *time.Time `json:"expires,omitempty"`
}

type deviceAskInput struct{ Body DeviceAsk }

type deviceTokenInput struct {
	Body struct {
		DeviceCode string `json:"deviceCode" minLength:"1" maxLength:"100"`
	}
}

type deviceAnswer struct {
	Status int
	Body   DeviceAnswer
}

func (s *Server) addDevice() {
	add(s, Operation{Method: "POST", Path: "/device", ID: "askDevice", Need: public, tag: "sign-in",
		summary: "Ask for a token that somebody confirms in the browser",
		description: "In the spirit of RFC 8628. Show the person verificationUriComplete and userCode, then ask " +
			"/device/token until they have decided.", status: http.StatusCreated},
		func(ctx context.Context, c *call, in *deviceAskInput) (*body[DeviceCode], error) {
			made, err := s.cfg.Users.AskDevice(ctx, users.DeviceAsk{
				Client: in.Body.Client, Scope: users.TokenScope(in.Body.Scope), Days: in.Body.Days, Remote: c.remote,
			})
			if err != nil {
				return nil, err
			}
			return answerWith(DeviceCode{DeviceCode: made.Code, UserCode: made.UserCode, VerificationURI: c.page("/device"),
				VerificationURIComplete: c.page("/device?code=" + url.QueryEscape(made.UserCode)),
				ExpiresIn:               int(users.DeviceTTL.Seconds()), Interval: int(users.DeviceInterval.Seconds())})
		})
	add(s, Operation{Method: "POST", Path: "/device/token", ID: "getDeviceToken", Need: public, tag: "sign-in",
		summary: "Get the token once somebody has confirmed",
		description: "202 while nobody has decided; 403 if it was denied; 410 if it is over; 429 for a program that does " +
			"not wait.",
		also: []int{http.StatusForbidden, gone, conflict, http.StatusNotFound}},
		func(ctx context.Context, c *call, in *deviceTokenInput) (*deviceAnswer, error) {
			secret, token, user, err := s.cfg.Users.DeviceToken(ctx, in.Body.DeviceCode, c.remote)
			if errors.Is(err, users.ErrDevicePending) {
				return &deviceAnswer{http.StatusAccepted,
					DeviceAnswer{State: "pending", Interval: int(users.DeviceInterval.Seconds())}}, nil
			}
			if err != nil {
				return nil, err
			}
			return &deviceAnswer{http.StatusOK, DeviceAnswer{State: "approved", Token: secret, Scope: string(token.Scope),
				Handle: user.Handle, Expires: &token.Expires}}, nil
		})
	poll := s.api.OpenAPI().Paths["/device/token"].Post
	poll.Responses["202"] = &huma.Response{Description: "Nobody has decided yet", Content: poll.Responses["200"].Content}
}
