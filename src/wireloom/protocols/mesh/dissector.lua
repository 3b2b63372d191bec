do
  local mesh = Proto("wireloom.mesh", "EMM")
  local events = { "Hello", "Heartbeat", "Event" }
  local kinds = {
    [0x01] = "String", [0x02] = "Integer", [0x03] = "Float", [0x04] = "Binary", [0x05] = "JSON", [0x10] = "HMAC",
    [0x11] = "Encryption metadata", [0x12] = "Signature", [0x13] = "Public key", [0x14] = "NODE ID",
    [0x15] = "Timestamp", [0x16] = "Nonce", [0x17] = "Key identifier", [0x18] = "Auth key id",
  }
  local parts = { "Algorithm", "IV length", "IV", "Nonce", "Key identifier" }
  local f = {
    version = ProtoField.uint8("wireloom.mesh.version", "Version"),
    id = ProtoField.uint32("wireloom.mesh.id", "Message id", base.HEX),
    flags = ProtoField.uint8("wireloom.mesh.flags", "Flags", base.HEX),
    urgent = ProtoField.bool("wireloom.mesh.urgent", "Urgent", 8, nil, 0x01),
    encrypted = ProtoField.bool("wireloom.mesh.encrypted", "Encrypted", 8, nil, 0x02),
    compressed = ProtoField.bool("wireloom.mesh.compressed", "Compressed", 8, nil, 0x04),
    type = ProtoField.uint8("wireloom.mesh.type", "Event type", base.DEC, events),
    time = ProtoField.absolute_time("wireloom.mesh.time", "Timestamp", base.UTC),
    length = ProtoField.uint16("wireloom.mesh.length", "Payload length"),
    field = ProtoField.uint8("wireloom.mesh.field", "Field", base.HEX, kinds),
    part = ProtoField.uint8("wireloom.mesh.part", "Part", base.HEX, parts),
    size = ProtoField.uint8("wireloom.mesh.size", "Size"),
    text = ProtoField.string("wireloom.mesh.text", "Text"),
    number = ProtoField.int32("wireloom.mesh.integer", "Integer"),
    float = ProtoField.float("wireloom.mesh.float", "Float"),
    node = ProtoField.guid("wireloom.mesh.node", "NODE ID"),
    bytes = ProtoField.bytes("wireloom.mesh.value", "Value"),
  }
  for _, field in pairs(f) do table.insert(mesh.fields, field) end

  local function show_value(buffer, kind, tree)
    if kind == 0x01 or kind == 0x05 then tree:add(f.text, buffer)
    elseif kind == 0x02 and buffer:len() == 4 then tree:add(f.number, buffer)
    elseif kind == 0x03 and buffer:len() == 4 then tree:add(f.float, buffer)
    elseif kind == 0x14 and buffer:len() == 16 then tree:add(f.node, buffer)
    else tree:add(f.bytes, buffer) end
  end

  -- The fields of a payload, or the parts of an encryption metadata field; returns the first text.
  local function show_fields(buffer, tree, names, field)
    local at, first = 0, nil
    while at + 2 <= buffer:len() do
      local kind, size = buffer(at, 1):uint(), buffer(at + 1, 1):uint()
      if at + 2 + size > buffer:len() then break end
      local branch = tree:add(mesh, buffer(at, 2 + size), names[kind] or string.format("Unknown 0x%02x", kind))
      branch:add(field, buffer(at, 1))
      branch:add(f.size, buffer(at + 1, 1))
      if size > 0 then
        local value = buffer(at + 2, size)
        if field == f.field and kind == 0x11 then show_fields(value:tvb(), branch, parts, f.part)
        elseif field == f.field then show_value(value, kind, branch)
        else branch:add(f.bytes, value) end
        if field == f.field and kind == 0x01 and first == nil then first = value:string(ENC_UTF_8) end
      end
      at = at + 2 + size
    end
    if at < buffer:len() then tree:add_expert_info(PI_MALFORMED, PI_ERROR, "a field goes past the payload") end
    return first
  end

  function mesh.dissector(buffer, pinfo, root)
    if buffer:len() < 17 then return 0 end
    pinfo.cols.protocol = mesh.description
    local tree = root:add(mesh, buffer())
    tree:add(f.version, buffer(0, 1))
    tree:add(f.id, buffer(1, 4))
    local flags = tree:add(f.flags, buffer(5, 1))
    flags:add(f.urgent, buffer(5, 1))
    flags:add(f.encrypted, buffer(5, 1))
    flags:add(f.compressed, buffer(5, 1))
    tree:add(f.type, buffer(6, 1))
    tree:add(f.time, buffer(7, 8))
    tree:add(f.length, buffer(15, 2))
    local name = events[buffer(6, 1):uint()] or "type " .. buffer(6, 1):uint()
    local text = buffer:len() > 17 and show_fields(buffer(17):tvb(), tree, kinds, f.field) or nil
    wireloom.summarise(pinfo, { name .. (text and " " .. text or "") })
    return buffer:len()
  end
  DissectorTable.get("udp.port"):add(5041, mesh)
end
