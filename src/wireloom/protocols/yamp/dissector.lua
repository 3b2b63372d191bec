do
  local yamp = Proto("wireloom.yamp", "YAMP")
  local types = { [0] = "handshake", "ping", "pong", "close", "close-redirect", "event", "request", "cancel", "response" }
  local outcomes = { [0] = "done", "error", "progress", "cancelled" }
  local f = {
    type = ProtoField.uint8("wireloom.yamp.type", "Frame", base.DEC, types),
    version = ProtoField.uint16("wireloom.yamp.version", "Version"),
    text = ProtoField.string("wireloom.yamp.text", "Text"),
    uid = ProtoField.guid("wireloom.yamp.uid", "Uid"),
    uri = ProtoField.string("wireloom.yamp.uri", "Uri"),
    progressive = ProtoField.bool("wireloom.yamp.progressive", "Wants progress"),
    request = ProtoField.guid("wireloom.yamp.request_uid", "Uid of the request"),
    kill = ProtoField.bool("wireloom.yamp.kill", "Kill"),
    outcome = ProtoField.uint8("wireloom.yamp.response", "Response", base.DEC, outcomes),
    size = ProtoField.uint32("wireloom.yamp.size", "Size"),
    body = ProtoField.bytes("wireloom.yamp.body", "Body"),
  }
  for _, field in pairs(f) do table.insert(yamp.fields, field) end

  -- System frames: where the text's size stands, and in how many bytes.
  local system = { [0] = { 3, 1 }, { 1, 1 }, { 1, 1 }, { 1, 2 }, { 1, 2 } }
  -- User frames: bytes between the uri and the body's size; a cancel has no body.
  local between = { [5] = 0, [6] = 1, [7] = 17, [8] = 17 }

  local function measure(buffer, at)
    local type, left = buffer(at, 1):uint(), buffer:len() - at
    local shape = system[type]
    if shape ~= nil then
      local start = shape[1] + shape[2]
      return left >= start and start + buffer(at + shape[1], shape[2]):uint() or nil
    end
    if between[type] == nil then return 0 end
    if left < 18 then return nil end
    local head = 18 + buffer(at + 17, 1):uint() + between[type]
    if type == 7 then return head end
    return left >= head + 4 and head + 4 + buffer(at + head, 4):uint() or nil
  end

  wireloom.stream(yamp, 5043, measure, function(buffer, tree)
    local type = buffer(0, 1):uint()
    local name, shape = types[type], system[type]
    tree:add(f.type, buffer(0, 1))
    if type == 0 then tree:add(f.version, buffer(1, 2)) end
    if shape ~= nil then
      local start = shape[1] + shape[2]
      if buffer:len() > start then tree:add(f.text, buffer(start)); name = name .. " " .. buffer(start):string(ENC_UTF_8) end
      return name
    end
    local length = buffer(17, 1):uint()
    local at = 18 + length
    tree:add(f.uid, buffer(1, 16))
    if length > 0 then tree:add(f.uri, buffer(18, length)); name = name .. " " .. buffer(18, length):string(ENC_UTF_8) end
    if type == 6 then tree:add(f.progressive, buffer(at, 1)) end
    if type > 6 then tree:add(f.request, buffer(at, 16)) end
    if type == 7 then tree:add(f.kill, buffer(at + 16, 1)) end
    if type == 8 then
      tree:add(f.outcome, buffer(at + 16, 1))
      name = name .. " " .. (outcomes[buffer(at + 16, 1):uint()] or "?")
    end
    at = at + between[type]
    if type ~= 7 then
      tree:add(f.size, buffer(at, 4))
      if buffer:len() > at + 4 then tree:add(f.body, buffer(at + 4)) end
    end
    return name
  end)
  -- Wireshark takes WebSocket apart by itself and hands on what is inside.
  DissectorTable.get("ws.port"):add(5044, yamp)
end
