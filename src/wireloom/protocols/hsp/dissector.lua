do
  local hsp = Proto("wireloom.hsp", "HSP")
  local commands = { [0] = "DATA", "DATA_ACK", "ACK", "PING", "PONG", "ERROR", "ERROR_UNDEF" }
  local command = ProtoField.uint8("wireloom.hsp.command", "Command", base.DEC, commands)
  local id = ProtoField.uint32("wireloom.hsp.id", "Message id")
  local kind = ProtoField.uint16("wireloom.hsp.type", "Type")
  local size = ProtoField.uint32("wireloom.hsp.size", "Size")
  local payload = ProtoField.bytes("wireloom.hsp.payload", "Payload")
  hsp.fields = { command, id, kind, size, payload }

  -- By command: where the id, the type and the payload's size stand; 0 for not at all.
  local shapes = { [0] = { 0, 1, 3 }, { 1, 5, 7 }, { 1, 0, 0 }, { 0, 0, 0 }, { 0, 0, 0 }, { 1, 5, 7 }, { 1, 0, 0 } }

  local function measure(buffer, at)
    local shape = shapes[buffer(at, 1):uint()]
    if shape == nil then return 0 end
    if shape[3] == 0 then return shape[1] == 0 and 1 or 5 end
    if buffer:len() < at + shape[3] + 4 then return nil end
    return shape[3] + 4 + buffer(at + shape[3], 4):uint()
  end

  wireloom.stream(hsp, 5042, measure, function(buffer, tree)
    local code = buffer(0, 1):uint()
    local shape, name = shapes[code], commands[code]
    tree:add(command, buffer(0, 1))
    if shape[1] > 0 then tree:add(id, buffer(shape[1], 4)); name = name .. " " .. buffer(shape[1], 4):uint() end
    if shape[2] > 0 then tree:add(kind, buffer(shape[2], 2)); name = name .. " type " .. buffer(shape[2], 2):uint() end
    if shape[3] > 0 then
      tree:add(size, buffer(shape[3], 4))
      if buffer:len() > shape[3] + 4 then tree:add(payload, buffer(shape[3] + 4)) end
    end
    return name
  end)
end
