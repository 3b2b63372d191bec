do
  local emp = Proto("wireloom.emp", "EMP")
  local types = { [0] = "hello", "bye", "ping", "pong", "error", "data" }
  local extensions = { [0] = "request-response", "compression", [128] = "hub" }
  local errors = { [0] = "unspecified", "IO", "timeout", "protocol", "extension" }
  local f = {
    size = ProtoField.uint32("wireloom.emp.size", "Size"),
    type = ProtoField.uint8("wireloom.emp.type", "Type", base.DEC, types),
    extended = ProtoField.bool("wireloom.emp.extended", "Extension blocks follow", 8, nil, 0x80),
    block = ProtoField.uint8("wireloom.emp.extension", "Extension", base.DEC, extensions),
    more = ProtoField.bool("wireloom.emp.more", "More blocks follow", 8, nil, 0x80),
    content = ProtoField.bytes("wireloom.emp.content", "Content"),
    request = ProtoField.bool("wireloom.emp.request", "Request", 8, nil, 0x80),
    id = ProtoField.uint64("wireloom.emp.id", "Request identifier"),
    scheme = ProtoField.uint8("wireloom.emp.scheme", "Compression", base.DEC, { [0] = "identity", "gzip" }),
    topic = ProtoField.string("wireloom.emp.topic", "Topic"),
    version = ProtoField.uint8("wireloom.emp.version", "Version"),
    error = ProtoField.uint8("wireloom.emp.error", "Error code", base.DEC, errors),
    message = ProtoField.string("wireloom.emp.message", "Error message"),
    body = ProtoField.bytes("wireloom.emp.body", "Body"),
  }
  for _, field in pairs(f) do table.insert(emp.fields, field) end

  local function measure(buffer, at)
    if buffer:len() < at + 4 then return nil end
    local size = buffer(at, 4):uint()
    return size < 8 and 0 or size
  end

  -- One extension block; returns what it adds to the frame's name.
  local function show_block(buffer, tree)
    local id = buffer(4, 1):uint()
    tree:add(f.size, buffer(0, 4))
    tree:add(f.block, buffer(4, 1))
    tree:add(f.more, buffer(5, 1))
    if buffer:len() == 8 then return "" end
    if id == 0 and buffer:len() == 20 then
      tree:add(f.request, buffer(8, 1))
      tree:add(f.id, buffer(12, 8))
      return (buffer(8, 1):uint() >= 128 and " request " or " response ") .. tostring(buffer(12, 8):uint64())
    elseif id == 1 then
      tree:add(f.scheme, buffer(8, 1))
    elseif id == 128 and buffer:len() >= 11 and buffer(8, 1):uint() % 2 == 1 then
      local length = buffer(9, 2):uint()
      if 11 + length <= buffer:len() and length > 0 then
        tree:add(f.topic, buffer(11, length))
        return " " .. buffer(11, length):string(ENC_UTF_8)
      end
    else
      tree:add(f.content, buffer(8))
    end
    return ""
  end

  wireloom.stream(emp, 5040, measure, function(buffer, tree)
    local type = buffer(4, 1):uint()
    local name, at = types[type] or "type " .. type, 8
    tree:add(f.size, buffer(0, 4))
    tree:add(f.type, buffer(4, 1))
    tree:add(f.extended, buffer(5, 1))
    local more = buffer(5, 1):uint() >= 128
    while more do
      local size = at + 8 <= buffer:len() and buffer(at, 4):uint() or 0
      if size < 8 or at + size > buffer:len() then
        tree:add_expert_info(PI_MALFORMED, PI_ERROR, "an extension block goes past the message")
        return name
      end
      more = buffer(at + 5, 1):uint() >= 128
      name = name .. show_block(buffer(at, size):tvb(), tree:add(emp, buffer(at, size), "Extension block"))
      at = at + size
    end
    if at == buffer:len() then return name end
    if type == 0 then
      tree:add(f.version, buffer(at, 1))
    elseif type == 4 and buffer:len() >= at + 6 then
      tree:add(f.error, buffer(at, 1))
      local length = math.min(buffer(at + 4, 2):uint(), buffer:len() - at - 6)
      if length > 0 then tree:add(f.message, buffer(at + 6, length)) end
    else
      tree:add(f.body, buffer(at))
    end
    return name
  end)
end
